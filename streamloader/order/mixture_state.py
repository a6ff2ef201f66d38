"""What a saved state says of a mixture, and how two such texts differ."""

from __future__ import annotations

from collections.abc import Sequence


def describe_mixture(weights: Sequence[int], data_sets: Sequence[str]) -> str:
    """The text for a state: ``7 x <data set> + 3 x <data set>``.

    Args:
        weights: as of ``Proportions``.
        data_sets: what tells each from others, without spaces.
    """
    return " + ".join(f"{weight} x {name}" for weight, name in zip(weights, data_sets, strict=True))


def mixture_difference(saved: str | None, current: str | None) -> str:
    """Words for two texts that are not equal."""
    if saved is None or current is None:
        if saved is None:
            return "it is of one data set, the loader mixes several"
        return "it mixes several data sets, the loader has one"
    before, now = saved.split(" + "), current.split(" + ")
    if len(before) != len(now):
        return f"it mixes {len(before)} data sets, the loader mixes {len(now)}"
    differences = []
    for number, (old, new) in enumerate(zip(before, now, strict=True)):
        old_weight, _, old_name = old.partition(" x ")
        new_weight, _, new_name = new.partition(" x ")
        if old_name != new_name:
            differences.append(f"its data set {number} is {old_name}, the loader's is {new_name}")
        if old_weight != new_weight:
            differences.append(
                f"its weight of data set {number} is {old_weight}, the loader's is {new_weight}"
            )
    return "; ".join(differences)
