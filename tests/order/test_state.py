import dataclasses
import json
from typing import Any

import pytest

from streamloader.errors import ConfigError, StateMismatch
from streamloader.order import ORDER_VERSION, LoaderState

STATE = LoaderState(
    fingerprint="b4d5",
    epoch=3,
    position=12_800,
    seed=2**64 - 1,
    lanes=256,
    window=2,
    shuffle="window",
    split="train",
    epoch_size=50_000,
    skipped=2,
    skipped_digest="77aa",
)


def test_state_survives_json() -> None:
    assert LoaderState.parse(json.loads(json.dumps(STATE.to_dict()))) == STATE


def test_state_is_small_and_names_its_rules() -> None:
    values = STATE.to_dict()
    assert values["version"] == ORDER_VERSION
    assert values["mode"] == "deterministic"
    assert len(json.dumps(values)) < 1000


def test_keys_of_others_are_left_alone() -> None:
    assert LoaderState.parse({**STATE.to_dict(), "decode_path": "cpu"}) == STATE


def test_equal_states_continue() -> None:
    STATE.check_continues(STATE)


@pytest.mark.parametrize(
    "change",
    [{"epoch": 9}, {"position": 0}, {"last_batch": "drop"}, {"skipped": 0, "skipped_digest": ""}],
)
def test_what_does_not_change_the_order_may_differ(change: dict[str, Any]) -> None:
    STATE.check_continues(dataclasses.replace(STATE, **change))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"fingerprint": "0000"}, "its data set fingerprint is 'b4d5', the loader's is '0000'"),
        ({"seed": 1}, "its seed is 18446744073709551615, the loader's is 1"),
        ({"lanes": 128}, "its lanes is 256, the loader's is 128"),
        ({"window": 3}, "its window is 2, the loader's is 3"),
        ({"shuffle": "global"}, "its shuffle is 'window', the loader's is 'global'"),
        ({"split": None}, "its split is 'train', the loader's is None"),
        ({"subset": "first 10"}, "its subset is None, the loader's is 'first 10'"),
        ({"epoch_size": None}, "its epoch size is 50000, the loader's is None"),
        ({"version": 2}, f"its order rule version is {ORDER_VERSION}, the loader's is 2"),
    ],
)
def test_a_mismatch_says_what_differs(change: dict[str, Any], words: str) -> None:
    with pytest.raises(StateMismatch) as caught:
        STATE.check_continues(dataclasses.replace(STATE, **change))
    assert words in str(caught.value)
    assert str(caught.value).count("the loader's is") == 1


@pytest.mark.parametrize(
    ("saved", "now", "words"),
    [
        (None, "7 x a + 3 x b", "it is of one data set, the loader mixes several"),
        ("7 x a + 3 x b", None, "it mixes several data sets, the loader has one"),
        ("7 x a + 3 x b", "1 x a + 1 x b + 1 x c", "it mixes 2 data sets, the loader mixes 3"),
        ("7 x a + 3 x b", "6 x a + 3 x b", "its weight of data set 0 is 7, the loader's is 6"),
        (
            "7 x a + 3 x b",
            "7 x a + 2 x c",
            "its data set 1 is b, the loader's is c; its weight of data set 1 is 3, the loader's",
        ),
        ("something else", "7 x a + 3 x b", "it mixes 1 data sets, the loader mixes 2"),
    ],
)
def test_another_mixture_is_told_by_its_data_sets(
    saved: str | None, now: str | None, words: str
) -> None:
    mixed = dataclasses.replace(STATE, mixture=saved, fingerprint="of the saved one")
    with pytest.raises(StateMismatch) as caught:
        mixed.check_continues(dataclasses.replace(STATE, mixture=now))
    assert words in str(caught.value)
    assert "fingerprint" not in str(caught.value)


def test_all_that_differs_is_said_at_once() -> None:
    with pytest.raises(StateMismatch, match=r"its split .*; its seed .*; its lanes"):
        STATE.check_continues(dataclasses.replace(STATE, seed=0, lanes=1, split=None))


def test_a_state_of_other_rules_is_refused() -> None:
    with pytest.raises(StateMismatch, match="order rule version 99, this streamloader has version"):
        LoaderState.parse({"version": 99, "something": "new"})


@pytest.mark.parametrize("values", [None, 7, "state", ["version", 1]])
def test_what_is_no_dict_is_refused(values: object) -> None:
    with pytest.raises(ConfigError, match="must be a dict from state_dict"):
        LoaderState.parse(values)


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(LoaderState)])
def test_a_missing_key_is_named(name: str) -> None:
    values = STATE.to_dict()
    del values[name]
    with pytest.raises(ConfigError, match=f"the loader state lacks {name};"):
        LoaderState.parse(values)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("epoch", -1),
        ("epoch", None),
        ("position", "5"),
        ("position", -1),
        ("seed", 1.5),
        ("lanes", 0),
        ("window", True),
        ("shuffle", "maybe"),
        ("mode", "sometimes"),
        ("last_batch", None),
        ("split", 3),
        ("subset", []),
        ("mixture", {}),
        ("epoch_size", 0),
        ("fingerprint", None),
        ("skipped", -1),
        ("skipped_digest", 0),
    ],
)
def test_a_malformed_field_is_named(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"state field '{name}' must be"):
        LoaderState.parse({**STATE.to_dict(), name: value})
