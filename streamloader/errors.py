"""Errors that streamloader raises.

    StreamLoaderError
    ├── ConfigError      an argument or an environment that cannot work      (also a ValueError)
    ├── ShardError       bytes that are not a valid shard, manifest or sidecar
    ├── SampleError      one sample whose content fails its checksum or cannot be decoded
    └── StateMismatch    a state that belongs to another data set, seed or rule version

Errors of the storage itself are ``storage_backends.StorageError`` and its kinds.
Every message says what happened, where, and what to do.
"""

from __future__ import annotations


class StreamLoaderError(Exception):
    """Base of every error that streamloader raises itself."""


class ConfigError(StreamLoaderError, ValueError):
    """An argument, or a combination of arguments and environment, that cannot work."""


class StateMismatch(StreamLoaderError):
    """A state dict that cannot continue here; the message names what differs."""


class ShardError(StreamLoaderError):
    """Bytes that are not what the format demands.

    Args:
        reason: what is wrong, in a few words.
        shard: name of the shard, manifest or sidecar.
        offset: byte offset in that object where the fault was seen, if known.
    """

    def __init__(self, reason: str, *, shard: str, offset: int | None = None) -> None:
        self.reason = reason
        self.shard = shard
        self.offset = offset
        where = shard if offset is None else f"{shard} at byte {offset}"
        super().__init__(f"{where}: {reason}")

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild_shard_error, (self.reason, self.shard, self.offset))


def _rebuild_shard_error(reason: str, shard: str, offset: int | None) -> ShardError:
    return ShardError(reason, shard=shard, offset=offset)


class SampleError(StreamLoaderError):
    """One sample that is stored but cannot be used.

    Args:
        reason: what is wrong with it.
        dataset: URL of the data set.
        shard: name of the shard that holds it.
        sample: its number in the data set.
        key: its key (the relative path it was converted from), if the shard has keys.
        offset: byte offset of its record in the shard, if known.
    """

    def __init__(
        self,
        reason: str,
        *,
        dataset: str,
        shard: str,
        sample: int,
        key: str | None = None,
        offset: int | None = None,
    ) -> None:
        self.reason = reason
        self.dataset = dataset
        self.shard = shard
        self.sample = sample
        self.key = key
        self.offset = offset
        name = f"sample {sample}" if key is None else f"sample {sample} ({key!r})"
        place = shard if offset is None else f"{shard} at byte {offset}"
        super().__init__(f"{name} of {dataset}, in {place}: {reason}")

    def __reduce__(self) -> tuple[object, ...]:
        fields = (self.reason, self.dataset, self.shard, self.sample, self.key, self.offset)
        return (_rebuild_sample_error, fields)


def _rebuild_sample_error(
    reason: str, dataset: str, shard: str, sample: int, key: str | None, offset: int | None
) -> SampleError:
    return SampleError(reason, dataset=dataset, shard=shard, sample=sample, key=key, offset=offset)
