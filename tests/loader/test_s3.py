"""The loader against a real S3 server."""

from __future__ import annotations

import time

import pytest
from picture_sets import NUM_PICTURES, write_pictures

from storage_backends import AccessDenied, NotFound, Unavailable
from streamloader import RandomResizedCrop, StreamLoader

pytestmark = pytest.mark.s3


def loader(url, storage_options, **options):
    wanted = {"batch_size": 8, "transform": RandomResizedCrop(24), "device": "cpu"}
    return StreamLoader(url, storage_options=storage_options, **{**wanted, **options})


def epoch(stream):
    return [
        (batch["index"].tolist(), batch["image"].numpy().tobytes(), batch["valid"].tolist())
        for batch in stream
    ]


def test_an_epoch_from_a_bucket_has_the_bytes_of_the_same_set_on_disk(s3_bucket, pictures):
    write_pictures(f"{s3_bucket.url}/set", storage_options=s3_bucket.storage_options)
    with (
        loader(f"{s3_bucket.url}/set", s3_bucket.storage_options, shuffle=True) as remote,
        loader(str(pictures), None, shuffle=True) as local,
    ):
        assert remote.state_dict() == local.state_dict()
        assert epoch(remote) == epoch(local)
        stats = remote.stats()["counters"]
    assert stats["samples"] == NUM_PICTURES
    assert stats["storage.requests"] >= stats["fetch.pieces"]


def test_places_that_cannot_work_are_one_clear_error_each(s3_bucket, s3_server):
    options = s3_bucket.storage_options
    with pytest.raises(NotFound, match="no-such-bucket"):
        loader("s3://no-such-bucket-here/set", options)
    wrong = {**options, "aws_secret_access_key": "not-the-secret"}
    with pytest.raises(AccessDenied) as refused:
        loader(f"{s3_bucket.url}/set", wrong)
    assert "not-the-secret" not in str(refused.value)


def test_a_dead_endpoint_is_told_within_seconds(s3_bucket):
    options = {
        **s3_bucket.storage_options,
        "endpoint_url": "http://127.0.0.1:9",
        "download_retry": 1,
    }
    started = time.monotonic()
    with pytest.raises(Unavailable, match="127.0.0.1:9"):
        loader("s3://anything/set", options)
    assert time.monotonic() - started < 30
