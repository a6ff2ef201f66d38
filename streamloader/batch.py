"""What the training loop receives: a mapping of tensors, with the state after it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from streamloader.errors import ConfigError


class Batch(Mapping[str, Any]):
    """One batch on one device.

    Keys are the picture and fixed fields of the data set, ``index`` (int64 [B], the sample's
    number in its data set) and ``valid`` (bool [B], False for padding and for the stand-in of a
    skipped bad sample); of a mixture also ``source`` (int64 [B], the number of the sample's data
    set in the list that the loader got). Pictures are [B, 3, H, W] with channels_last strides.

    The tensors are the caller's as long as they, or views of them, are alive: the memory
    goes back to the loader when the last of them is gone.

    Args:
        fields: by name.
        state: of the loader after this batch; None for one that somebody else made of fields,
            as trainers do that rebuild a mapping of any type from its items.
    """

    __slots__ = ("_fields", "_state")

    def __init__(self, fields: Mapping[str, Any], state: dict[str, Any] | None = None) -> None:
        self._fields = dict(fields)
        self._state = state

    @property
    def state(self) -> dict[str, Any]:
        """The loader's state after this batch, as of ``StreamLoader.state_dict``.

        Raises:
            ConfigError: this batch was not given by a loader.
        """
        if self._state is None:
            raise ConfigError(
                "this batch was made anew from the fields of another and has no state: take that"
                " of the batch that the loader gave, or loader.state_dict()"
            )
        return dict(self._state)

    def __getitem__(self, key: str) -> Any:
        return self._fields[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def to(self, *args: Any, **kwargs: Any) -> Batch:
        """A batch whose tensors went through ``tensor.to`` with the same arguments."""
        return self._map(lambda tensor: tensor.to(*args, **kwargs))

    def pin_memory(self) -> Batch:
        """A batch whose tensors lie in pinned memory."""
        return self._map(lambda tensor: tensor.pin_memory())

    def _map(self, change: Callable[[Any], Any]) -> Batch:
        fields = {
            name: change(value) if hasattr(value, "is_pinned") else value
            for name, value in self._fields.items()
        }
        return Batch(fields, self._state)

    def __repr__(self) -> str:
        parts = []
        for name, value in self._fields.items():
            shape = getattr(value, "shape", None)
            kind = getattr(value, "dtype", type(value).__name__)
            parts.append(f"{name}: {kind}" + ("" if shape is None else f"{list(shape)}"))
        return f"Batch({', '.join(parts)})"
