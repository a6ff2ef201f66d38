"""feed="auto": a process of its own for a GPU, where what is to go there can."""

from __future__ import annotations

import dataclasses
import logging

import pytest
from user_functions import double_label

from streamloader import ConfigError, RandomResizedCrop, StreamLoader
from streamloader._feed_choice import check_can_move, choose_feed


@pytest.fixture
def settings(pictures):
    def make(**options):
        with StreamLoader(
            str(pictures),
            batch_size=4,
            transform=RandomResizedCrop(24),
            device="cpu",
            num_workers=1,
            **{"feed": "thread", **options},
        ) as loader:
            return loader._engine.settings

    return make


def auto(settings):
    """What the user gave, where a loader keeps what was chosen."""
    return dataclasses.replace(settings, feed="auto")


def test_threads_feed_the_cpu_and_a_process_a_gpu(settings) -> None:
    given = auto(settings(map=double_label))
    assert choose_feed(given, None).feed == "thread"
    assert choose_feed(given, 0).feed == "process"


@pytest.mark.parametrize("feed", ["thread", "process"])
@pytest.mark.parametrize("gpu", [None, 1])
def test_what_the_user_chose_stays(settings, feed, gpu) -> None:
    assert choose_feed(settings(feed=feed), gpu).feed == feed


def test_code_that_cannot_move_keeps_threads_and_the_log_says_why(settings, caplog) -> None:
    given = auto(settings(map=lambda sample: sample))
    with caplog.at_level(logging.INFO, "streamloader"):
        assert choose_feed(given, 0).feed == "thread"
    assert "chose threads" in caplog.text
    assert "use functions and classes of a module" in caplog.text
    with pytest.raises(ConfigError, match="use functions and classes of a module"):
        check_can_move(given)


def test_the_default_is_said_in_the_statistics(pictures) -> None:
    with StreamLoader(str(pictures), batch_size=4, device="cpu", num_workers=1) as loader:
        assert loader.stats()["feed"] == "thread"
