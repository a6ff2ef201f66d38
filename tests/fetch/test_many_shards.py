"""A data set of many shards, and few descriptors."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nginx_server import NginxServer, find_nginx

from streamloader import DatasetWriter

SHARDS = 2_000
SAMPLES = 2 * SHARDS
_READER = f"""
import json, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
from streamloader.fetch import CacheOptions
from streamloader.fetch.offline import PrefetchOptions, prefetch_offline
url, folder, given = sys.argv[1:]
for _ in range(2):
    options = PrefetchOptions(batch_size=64, cache=CacheOptions.of(folder, None))
    report = prefetch_offline(url, options, storage_options=json.loads(given))
    assert not report.errors and report.samples == {SAMPLES}, report
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_two_thousand_shards_are_read_with_256_descriptors(tmp_path: Path) -> None:
    if find_nginx() is None:
        pytest.skip("no nginx; on Debian: apt install nginx-light")
    data = np.zeros(3_000, np.uint8)
    fields = {"data": "bytes", "label": "int64"}
    with DatasetWriter(tmp_path / "set", fields, shard_bytes=4_000, block_samples=1) as writer:
        for number in range(SAMPLES):
            data[:8] = np.frombuffer(np.int64(number).tobytes(), np.uint8)
            writer.write({"data": data, "label": number})
    assert len(list((tmp_path / "set").glob("*.dts"))) == SHARDS
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[1] >= 256
    with NginxServer(tmp_path) as nginx:
        # A web server answers a bucket's reads as S3 does, as long as nobody asks who is asking.
        bucket = {"endpoint_url": nginx.url, "anonymous": True}
        places: list[tuple[str, dict[str, Any]]] = [
            (f"{nginx.url}/set", {}),
            (str(tmp_path / "set"), {}),
            ("s3://set", bucket),
            ("s3://set", {**bucket, "reader": "aiobotocore"}),
        ]
        for number, (url, options) in enumerate(places):
            cache = str(tmp_path / f"cache{number}")
            done = subprocess.run(
                [sys.executable, "-c", _READER, url, cache, json.dumps(options)],
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, done.stderr
