"""How a data set is cut and ordered, checked once."""

from __future__ import annotations

from dataclasses import dataclass, field

from streamloader.convert.encoding import Encoding
from streamloader.convert.picture_options import PictureOptions
from streamloader.errors import ConfigError
from streamloader.sizes import parse_size
from streamloader.topology import allowed_cpus

DEFAULT_SHARD_BYTES = "128mib"
MAX_SHARD_BYTES = 64 * 10**9
AUTO_BLOCK_BYTES = 1 << 20
MAX_AUTO_BLOCK_SAMPLES = 4096
MAX_BLOCK_SAMPLES = 1 << 20
SAMPLE_ALIGN = 64


@dataclass(frozen=True, slots=True)
class CutOptions:
    """How samples become blocks and shards.

    Args:
        shard_bytes: a new shard starts where the records would pass this size; a size string
            or bytes, at most 64 GB (what a bucket takes in 10,000 parts of 8 MiB).
        block_samples: samples that are fetched together; ``"auto"`` takes about 1 MiB.
    """

    shard_bytes: int | str = DEFAULT_SHARD_BYTES
    block_samples: int | str = "auto"

    def __post_init__(self) -> None:
        shard_bytes = parse_size(self.shard_bytes, "shard_bytes")
        if shard_bytes > MAX_SHARD_BYTES:
            raise ConfigError(f"shard_bytes must be at most 64gb, got {self.shard_bytes!r}")
        object.__setattr__(self, "shard_bytes", shard_bytes)
        object.__setattr__(self, "block_samples", _parse_block_samples(self.block_samples))

    @property
    def shard_limit(self) -> int:
        """Bytes of records after which a shard ends."""
        assert isinstance(self.shard_bytes, int)
        return self.shard_bytes

    def samples_per_block(self, total_bytes: int, num_samples: int) -> int:
        """Return the block size in samples for data of this mean size."""
        if isinstance(self.block_samples, int):
            return self.block_samples
        mean_bytes = max(1.0, total_bytes / max(1, num_samples))
        return max(1, min(MAX_AUTO_BLOCK_SAMPLES, round(AUTO_BLOCK_BYTES / mean_bytes)))


@dataclass(frozen=True, slots=True)
class ConvertOptions:
    """Everything that shapes a conversion.

    Args:
        cut: shard and block sizes.
        encoding: codecs and hash.
        shuffle_seed: seed of the order in which samples are stored, 0 <= seed < 2^63; None keeps
            the order of the paths.
        jobs: threads that read and decode; None takes the CPUs this process may use. The bytes
            written do not depend on it.
        decode_check: decode every picture fully before it is stored.
        max_rejects: stop when more bad samples than this were met; None has no limit.
        pictures: what is done to them.
    """

    cut: CutOptions = field(default_factory=CutOptions)
    encoding: Encoding = field(default_factory=Encoding)
    shuffle_seed: int | None = 0
    jobs: int | None = None
    decode_check: bool = True
    max_rejects: int | None = None
    pictures: PictureOptions = field(default_factory=PictureOptions)

    def __post_init__(self) -> None:
        if self.shuffle_seed is not None:
            _check_int(self.shuffle_seed, "shuffle_seed", 0, (1 << 63) - 1)
        if self.jobs is not None:
            _check_int(self.jobs, "jobs", 1, 1024)
        if self.max_rejects is not None:
            _check_int(self.max_rejects, "max_rejects", 0, (1 << 63) - 1)

    @property
    def num_threads(self) -> int:
        """Threads to start."""
        return self.jobs if self.jobs is not None else allowed_cpus()


def _parse_block_samples(value: int | str) -> int | str:
    if value == "auto":
        return value
    if isinstance(value, str) and value.isascii() and value.isdigit():
        value = int(value[:19])
    _check_int(value, "block_samples", 1, MAX_BLOCK_SAMPLES, also="'auto' or ")
    return value


def _check_int(value: object, name: str, low: int, high: int, also: str = "") -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ConfigError(f"{name} must be {also}an integer in [{low}, {high}], got {value!r}")
