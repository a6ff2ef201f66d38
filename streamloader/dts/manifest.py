"""The manifest: which shards make a data set, and everything to plan reading them."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from streamloader.dts.layout import (
    MAX_SAMPLE_ALIGN,
    UUID_BYTES,
    Uuid,
    data_offset_of,
)
from streamloader.dts.limits import DEFAULT_LIMITS, Limits
from streamloader.dts.manifest_rules import MAX_SCHEMAS, MAX_SEED, MAX_SHARDS, first_fault
from streamloader.dts.naming import MAX_REV
from streamloader.dts.schema import Schema
from streamloader.dts.schema_union import unite
from streamloader.dts.shard_table import ShardEntry, ShardTable
from streamloader.dts.strict_json import JsonObject, canonical_json, parse_json
from streamloader.errors import ConfigError, ShardError

if TYPE_CHECKING:
    from typing_extensions import Buffer

FORMAT_NAME: Final = "dts1"
MANIFEST_VERSION: Final = 1
_MAX_CLASSES: Final = 2**24


@dataclass(frozen=True, slots=True)
class SplitEntry:
    """A split: a run of shards.

    Args:
        first_shard: its first shard's place in the manifest.
        num_shards: shards in it, 1 or more.
    """

    first_shard: int
    num_shards: int


@dataclass(frozen=True, slots=True)
class SidecarEntry:
    """The sidecar that belongs to a manifest.

    Args:
        name: of the object, relative to the data set.
        sha256: of its bytes, 64 lower-case hex digits.
    """

    name: str
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """One revision of a data set; never changed once written.

    Args:
        dataset_uuid: 16 bytes, the same for all revisions.
        rev: 1 to 999,999.
        schemas: which `ShardEntry.schema_id` counts into.
        shards: entries in data set order, in any sequence.
        block_samples: samples of a block, the unit of reading and shuffling.
        max_block_bytes: the longest block, in payload bytes.
        max_record_bytes: the longest record with its padding.
        sidecar: where the offsets of the blocks are.
        splits: name -> run of shards; together they are all shards, without overlap. Empty: the
            data set is one unnamed split.
        classes: names of the classes that labels count into; empty when there are none.
        parent_rev: revision this one was made from.
        export_seed: seed of the order samples were written in, None when not shuffled.
        created_by: program and version.
        sample_align: alignment of records, the same in all shards.

    Attributes:
        table: the shards as columns.
        schema: all fields of all schemas; a field that not all have has a default.

    Raises:
        ConfigError: for values that no manifest can have.
    """

    dataset_uuid: Uuid
    rev: int
    schemas: tuple[Schema, ...]
    shards: Sequence[ShardEntry]
    block_samples: int
    max_block_bytes: int
    max_record_bytes: int
    sidecar: SidecarEntry
    splits: Mapping[str, SplitEntry] = dataclasses.field(default_factory=dict)
    classes: tuple[str, ...] = ()
    parent_rev: int | None = None
    export_seed: int | None = None
    created_by: str = "streamloader"
    sample_align: int = 64
    table: ShardTable = dataclasses.field(init=False, repr=False, compare=False)
    schema: Schema = dataclasses.field(init=False, repr=False, compare=False)
    _fingerprint: str = dataclasses.field(default="", init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        shards = self.shards
        table = shards if isinstance(shards, ShardTable) else ShardTable(shards)
        object.__setattr__(self, "shards", table)
        object.__setattr__(self, "table", table)
        object.__setattr__(self, "schemas", tuple(self.schemas))
        object.__setattr__(self, "splits", MappingProxyType(dict(self.splits)))
        object.__setattr__(self, "classes", tuple(self.classes))
        fault = first_fault(self)
        if fault is not None:
            raise ConfigError(f"manifest {fault}")
        object.__setattr__(self, "schema", unite(self.schemas))

    @property
    def hash(self) -> str:
        """Hash of the records, the same in all schemas."""
        return self.schema.hash

    @property
    def num_samples(self) -> int:
        return int(self.table.samples.sum())

    @property
    def num_shards(self) -> int:
        return len(self.shards)

    @property
    def shard_samples(self) -> npt.NDArray[np.int64]:
        """int64 [num_shards], samples of each shard."""
        return self.table.samples

    @property
    def shard_bytes(self) -> npt.NDArray[np.int64]:
        """int64 [num_shards], length of each shard."""
        return self.table.bytes

    @property
    def tail_bytes(self) -> npt.NDArray[np.int64]:
        """int64 [num_shards], length of each shard's tail."""
        return self.table.tail_bytes

    @property
    def data_offset(self) -> int:
        """Byte at which the first record of every shard starts."""
        return data_offset_of(self.sample_align)

    @property
    def split_runs(self) -> tuple[SplitEntry, ...]:
        """Runs of shards in stored order; one of all shards when there are no splits."""
        if not self.splits:
            return (SplitEntry(0, self.num_shards),)
        return tuple(sorted(self.splits.values(), key=lambda run: run.first_shard))

    @property
    def num_blocks(self) -> int:
        """Blocks of all splits together, as many as the sidecar has offsets."""
        return sum(self.run_blocks(run) for run in self.split_runs)

    def run_samples(self, run: SplitEntry) -> int:
        """Samples of a run of shards."""
        return int(self.shard_samples[run.first_shard : run.first_shard + run.num_shards].sum())

    def run_blocks(self, run: SplitEntry) -> int:
        """Blocks of a run of shards; the block grid starts anew with each run."""
        return -(-self.run_samples(run) // self.block_samples)

    def entry(self, shard: int) -> ShardEntry:
        """Entry of one shard."""
        return self.table.entry(shard)

    def schema_of(self, shard: int) -> Schema:
        """Schema of one shard."""
        return self.schemas[self.entry(shard).schema_id]

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the manifest's bytes: identity of the data set in this revision."""
        if not self._fingerprint:
            digest = hashlib.sha256(self.to_bytes()).hexdigest()
            object.__setattr__(self, "_fingerprint", digest)
        return self._fingerprint

    def to_bytes(self) -> bytes:
        """Canonical JSON, the content of ``manifest-<rev>.json``."""
        splits = {
            name: {"first_shard": run.first_shard, "num_shards": run.num_shards}
            for name, run in self.splits.items()
        }
        return canonical_json(
            {
                "format": FORMAT_NAME,
                "version": MANIFEST_VERSION,
                "dataset_uuid": self.dataset_uuid.hex(),
                "rev": self.rev,
                "parent_rev": self.parent_rev,
                "num_samples": self.num_samples,
                "hash": self.hash,
                "schemas": [schema.to_object() for schema in self.schemas],
                "shards": [entry.to_object() for entry in self.shards],
                "splits": splits,
                "classes": list(self.classes),
                "block_samples": self.block_samples,
                "max_block_bytes": self.max_block_bytes,
                "max_record_bytes": self.max_record_bytes,
                "sample_align": self.sample_align,
                "sidecar": {"name": self.sidecar.name, "sha256": self.sidecar.sha256},
                "export_seed": self.export_seed,
                "created_by": self.created_by,
            }
        )

    @classmethod
    def parse(
        cls,
        data: Buffer,
        name: str = "manifest",
        *,
        expected_sha256: str | None = None,
        limits: Limits = DEFAULT_LIMITS,
    ) -> Manifest:
        """Manifest from its bytes.

        Args:
            data: the object's content.
            name: how errors call it.
            expected_sha256: digest that the pointer or the user demands.
            limits: bounds of the reader.

        Raises:
            ShardError: when the bytes are not the expected or not a valid manifest.
        """
        view = memoryview(data)
        if view.nbytes > limits.manifest_bytes:
            raise ShardError(
                f"manifest has {view.nbytes} bytes, more than {limits.manifest_bytes}", shard=name
            )
        digest = hashlib.sha256(view).hexdigest()
        if expected_sha256 is not None and digest != expected_sha256:
            raise ShardError(
                f"manifest has SHA-256 {digest}, expected {expected_sha256}", shard=name
            )
        value = parse_json(view, shard=name, what="manifest", max_depth=None)
        manifest = _from_object(value, name)
        object.__setattr__(manifest, "_fingerprint", digest)
        return manifest


def _from_object(value: Any, name: str) -> Manifest:
    item = JsonObject(value, shard=name, what="manifest")
    if item.take("format") != FORMAT_NAME:
        raise item.fault(f"is not of format {FORMAT_NAME!r}")
    version = item.take_integer("version", 1, 2**31)
    if version != MANIFEST_VERSION:
        raise item.fault(f"has version {version}, this build reads {MANIFEST_VERSION}")
    stated_hash = item.take_text("hash")
    stated_samples = item.take_integer("num_samples", 0, 2**63 - 1)
    schemas = item.take_list("schemas", MAX_SCHEMAS)
    shards = item.take_list("shards", MAX_SHARDS)
    try:
        manifest = Manifest(
            dataset_uuid=item.take_hex("dataset_uuid", UUID_BYTES),
            rev=item.take_integer("rev", 1, MAX_REV),
            schemas=tuple(Schema.from_object(schema, name) for schema in schemas),
            shards=ShardTable.from_objects(shards, name),
            block_samples=item.take_integer("block_samples", 1, 2**32 - 1),
            max_block_bytes=item.take_integer("max_block_bytes", 0, 2**63 - 1),
            max_record_bytes=item.take_integer("max_record_bytes", 0, 2**32),
            sidecar=_sidecar(item.take("sidecar"), name),
            splits=_splits(item.take_mapping("splits"), name),
            classes=_classes(item),
            parent_rev=_optional_integer(item, "parent_rev", 1, MAX_REV),
            export_seed=_optional_integer(item, "export_seed", 0, MAX_SEED),
            created_by=item.take_text("created_by"),
            sample_align=item.take_integer("sample_align", 1, MAX_SAMPLE_ALIGN),
        )
    except ConfigError as exc:
        raise ShardError(str(exc), shard=name) from exc
    item.finish()
    if manifest.hash != stated_hash:
        raise item.fault(f"states the hash {stated_hash!r}, its schemas have {manifest.hash!r}")
    if manifest.num_samples != stated_samples:
        raise ShardError(
            f"manifest states {stated_samples} samples, its shards have {manifest.num_samples}",
            shard=name,
        )
    return manifest


def _sidecar(value: Any, name: str) -> SidecarEntry:
    item = JsonObject(value, shard=name, what="manifest's sidecar")
    entry = SidecarEntry(item.take_text("name"), item.take_hex("sha256", 32).hex())
    item.finish()
    return entry


def _splits(value: dict[str, Any], name: str) -> dict[str, SplitEntry]:
    runs: dict[str, SplitEntry] = {}
    for split, content in value.items():
        item = JsonObject(content, shard=name, what=f"split {ascii(split)[:80]}")
        runs[split] = SplitEntry(
            item.take_integer("first_shard", 0, MAX_SHARDS),
            item.take_integer("num_shards", 1, MAX_SHARDS),
        )
        item.finish()
    return runs


def _classes(item: JsonObject) -> tuple[str, ...]:
    value = item.take_list("classes", _MAX_CLASSES)
    if not all(isinstance(text, str) for text in value):
        raise item.fault("has classes that are not texts")
    return tuple(value)


def _optional_integer(item: JsonObject, key: str, low: int, high: int) -> int | None:
    value = item.take(key)
    if value is None:
        return None
    if type(value) is not int or not low <= value <= high:
        raise item.fault(f"has {key} that is neither null nor an integer of {low} to {high}")
    return value
