"""Makes cases, and says what must hold of each.

- Nothing but ShardError leaves a parser.
- Damage that leaves all checksums as they were is noticed.
"""

from __future__ import annotations

import contextlib
import random
import struct
from collections import Counter
from dataclasses import dataclass

import xxhash

from streamloader.dts import BlockTable, Manifest, Pointer, Sidecar, open_shard
from streamloader.errors import ShardError
from tests.dts.fuzz.corpus import manifest_corpus, shard_corpus
from tests.dts.fuzz.edits import DAMAGE, edit_bytes, edit_json, splice
from tests.dts.fuzz.forgery import FORGERY


@dataclass(frozen=True, slots=True)
class Case:
    """One input.

    Args:
        data: bytes of the file.
        plain: True when no checksum was made right again, so that damage must be noticed.
        how: name of the mutation.
    """

    data: bytes
    plain: bool
    how: str


class NotNoticed(Exception):
    """Damage that every check let pass, or a check that refuses what is whole."""


def check_shard(data: bytes) -> bool:
    """Use everything of a shard; True when nothing was wrong, ShardError or False when it was."""
    index = open_shard(lambda o, n: data[o : o + n], len(data), "fuzz.dts")
    faults = index.verify_records(0, index.num_samples, data, 0)
    _ = index.stats
    for column in index.schema.columns:
        index.column(column.name).sum()
    broken = 0
    for sample in range(index.num_samples):
        for use in (lambda n=sample: index.key(n), lambda n=sample: index.read_record(n, data, 0)):
            try:
                use()
            except ShardError:
                broken += 1
    index.check_head(data[: index.data_offset])
    return not faults and not broken


def check_shard_case(case: Case, corpus: list[bytes]) -> None:
    try:
        clean = check_shard(case.data)
    except ShardError:
        return
    if case.plain and clean and case.data not in corpus:
        raise NotNoticed(case.how)


def check_manifest(data: bytes, sidecar: bytes) -> None:
    """Plan by a manifest and a sidecar; what is accepted is written and read again."""
    try:
        manifest = Manifest.parse(data, "fuzz.json")
        split = next(iter(manifest.splits), None)
        table = BlockTable(manifest, Sidecar.parse(sidecar, "fuzz.bin"), split)
    except ShardError:
        return
    if Manifest.parse(manifest.to_bytes(), "written again") != manifest:
        raise NotNoticed("a manifest does not come back as it was read")
    for block in range(min(table.num_blocks, 50)):
        table.block_span_bytes(block)


class Fuzzer:
    """Makes and checks cases; the same seed and number give the same case."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.shards = shard_corpus()
        self.manifest, self.sidecar, self.pointer = manifest_corpus()
        if not all(check_shard(data) for data in self.shards):
            raise NotNoticed("the corpus itself is damaged")
        self.counts: Counter[str] = Counter()

    def case(self, number: int) -> Case:
        rng = random.Random(f"{self.seed}/{number}")
        data = rng.choice(self.shards)
        match rng.randrange(10):
            case 0 | 1:
                mutate = rng.choice(DAMAGE)
                return Case(mutate(rng, data), True, mutate.__name__)
            case 2:
                return Case(splice(rng, data, rng.choice(self.shards)), True, "splice")
            case 3:
                edit = rng.choice((edit_json, edit_json, edit_bytes))
                return Case(edit(rng, self.manifest), False, f"manifest {edit.__name__}")
            case 4:
                return self._small_case(rng)
        mutate = rng.choice(FORGERY)
        return Case(mutate(rng, data), False, mutate.__name__)

    def _small_case(self, rng: random.Random) -> Case:
        if rng.random() < 0.3:
            return Case(edit_bytes(rng, self.pointer), False, "pointer")
        body = edit_bytes(rng, self.sidecar[:-8])
        return Case(body + struct.pack("<Q", xxhash.xxh3_64_intdigest(body)), False, "sidecar")

    def check(self, case: Case) -> None:
        self.counts[case.how] += 1
        if case.how == "pointer":
            with contextlib.suppress(ShardError):
                Pointer.parse(case.data)
        elif case.how == "sidecar":
            check_manifest(self.manifest, case.data)
        elif case.how.startswith("manifest"):
            check_manifest(case.data, self.sidecar)
        else:
            check_shard_case(case, self.shards)
