"""Reads a run of samples and checks them: at once where they are plain JPEGs, else one by one."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from streamloader.convert.picture_check import LARGE_PICTURE_PIXELS, UnsoundPicture
from streamloader.convert.picture_options import PictureOptions
from streamloader.convert.picture_steps import prepare_picture
from streamloader.convert.report import Rejected
from streamloader.convert.run_memory import RUN_ALIGN, MemoryPool, RunMemory
from streamloader.convert.sources import Listing, ReadPacked, ReadSamples, Record
from streamloader.decode import PictureFault, check_picture
from streamloader.dts import (
    DEFAULT_LIMITS,
    PackedJpegs,
    PictureHeader,
    Schema,
    pack_jpegs,
    takes_packed,
)

RUN_BYTES = 2 << 20
RUN_SAMPLES = 64
_LONG_RUN_BYTES = 8 << 20
_LONG_RUN_SAMPLES = 128
_LONG_RUNS_AHEAD_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class StoringOptions:
    """How samples become records.

    Args:
        schema: of the shards.
        zstd_level: of fields with codec ``zstd``.
        decode_check: decode every picture fully.
        pictures: what is done to them.
    """

    schema: Schema
    zstd_level: int
    decode_check: bool
    pictures: PictureOptions


@dataclass(frozen=True, slots=True)
class RunLimits:
    """Where a run of samples ends.

    Args:
        nbytes: of its samples in the source, unless it is a single one.
        samples: how many.
    """

    nbytes: int = RUN_BYTES
    samples: int = RUN_SAMPLES

    @classmethod
    def long(cls, num_threads: int) -> RunLimits:
        """Limits where a run costs little but its handing over, from thread to thread.

        Args:
            num_threads: that read; with many, runs are shorter, since each has some ahead.
        """
        each = _LONG_RUNS_AHEAD_BYTES // (num_threads + 1)
        return cls(min(max(each, RUN_BYTES), _LONG_RUN_BYTES), _LONG_RUN_SAMPLES)


@dataclass(frozen=True, slots=True)
class Checked:
    """A sample that is sound, as it is stored.

    Args:
        key: of the sample.
        record: its values.
        headers: of its pictures, by field, as far as they were read.
    """

    key: str
    record: Record
    headers: Mapping[str, PictureHeader]


@dataclass(frozen=True, slots=True)
class PackedRun:
    """Samples of one JPEG each.

    Args:
        pictures: that are sound.
        columns: other fields, by name.
        keys: of the samples.
    """

    pictures: PackedJpegs
    columns: Mapping[str, npt.NDArray[Any]]
    keys: list[str]


@dataclass(frozen=True, slots=True)
class Run:
    """Some samples of a shard, read and checked.

    Args:
        samples: how many there were.
        bytes_seen: their bytes in the source.
        records: the sound ones.
        bytes_in: their bytes in the source.
        rejects: the others.
        memory: where their values lie; used again once they are stored.
        packed: all samples, instead of ``records``, if they are sound JPEGs that stay as they are.
    """

    samples: int
    bytes_seen: int
    records: list[Checked]
    bytes_in: int
    rejects: list[Rejected]
    memory: RunMemory
    packed: PackedRun | None = None


class RunReader:
    """Reads runs of samples; from several threads at once.

    Args:
        listing: of the source.
        read: reads samples of the source.
        options: how samples become records.
        num_threads: how many.

    Attributes:
        limits: of the runs that it is to be given.
    """

    def __init__(
        self, listing: Listing, read: ReadSamples, options: StoringOptions, num_threads: int
    ) -> None:
        self._listing = listing
        self._read = read
        self._options = options
        self._abort = threading.Event()
        self._pictures = [f.name for f in options.schema.fields if f.type == "picture"]
        may_pack = options.pictures.keep_all and takes_packed(options.schema)
        self._packed = read if may_pack and isinstance(read, ReadPacked) else None
        is_quick = self._packed is not None and not options.decode_check
        self.limits = RunLimits.long(num_threads) if is_quick else RunLimits()
        self._memories = MemoryPool(self.limits.nbytes + self.limits.samples * RUN_ALIGN)

    def abort(self) -> None:
        """Let the threads give up what they are at; its results are not used."""
        self._abort.set()

    def give_back(self, run: Run) -> None:
        """Use the memory of a run again, whose samples are stored."""
        self._memories.give_back(run.memory)

    def read_run(self, split: int, places: list[int]) -> Run:
        """Read and check samples, within ``limits``."""
        memory = self._memories.borrow()
        packed = self._read_packed_run(split, places, memory)
        if packed is not None:
            nbytes = int(packed.pictures.lengths.sum())
            return Run(len(places), nbytes, [], nbytes, [], memory, packed)
        memory.clear()
        return self._read_singly(split, places, memory)

    def _read_packed_run(
        self, split: int, places: list[int], memory: RunMemory
    ) -> PackedRun | None:
        """Read samples at once; None where one is unsound, or odd, or it cannot be."""
        if self._packed is None:
            return None
        found = self._packed.packed(split, places, memory)
        if found is None:
            return None
        files, columns = found
        pictures = pack_jpegs(files.data, files.offsets, files.lengths)
        if pictures is None or not self._all_sound(pictures):
            return None
        keys = self._listing.splits[split].keys
        return PackedRun(pictures, columns, [keys[place] for place in places])

    def _all_sound(self, pictures: PackedJpegs) -> bool:
        sizes = pictures.widths.astype(np.int64) * pictures.heights
        if int(sizes.max()) > LARGE_PICTURE_PIXELS:
            return False
        if not self._options.decode_check:
            return True
        for place in range(len(sizes)):
            if self._abort.is_set():
                return True
            try:
                check_picture(pictures.picture(place))
            except PictureFault:
                # Said in the words of the one by one.
                return False
        return True

    def _read_singly(self, split: int, places: list[int], memory: RunMemory) -> Run:
        """Read and check samples one by one, and say of each what is wrong with it."""
        listed = self._listing.splits[split]
        sizes = dict(zip(places, listed.sizes[places].tolist(), strict=True))
        records: list[Checked] = []
        rejects: list[Rejected] = []
        fitting = [place for place in places if sizes[place] <= DEFAULT_LIMITS.record_bytes]
        if len(fitting) < len(places):
            rejects += [
                Rejected(listed.keys[place], f"{size} bytes are more than a record can have")
                for place, size in sizes.items()
                if size > DEFAULT_LIMITS.record_bytes
            ]
        bytes_in = 0
        contents = self._read(split, fitting, memory)
        for place in fitting:
            if self._abort.is_set():
                break
            content = next(contents)
            checked = (
                content
                if isinstance(content, Rejected)
                else self._checked(listed.keys[place], content)
            )
            if isinstance(checked, Rejected):
                rejects.append(checked)
            else:
                records.append(checked)
                bytes_in += sizes[place]
        return Run(len(places), sum(sizes.values()), records, bytes_in, rejects, memory)

    def _checked(self, key: str, record: Record) -> Checked | Rejected:
        """Return the record as it is stored, its pictures checked and prepared."""
        options = self._options
        if not self._pictures:
            return Checked(key, record, {})
        prepared = dict(record)
        headers: dict[str, PictureHeader] = {}
        for name in self._pictures:
            try:
                prepared[name], header = prepare_picture(
                    record[name], options.pictures, decode=options.decode_check
                )
            except UnsoundPicture as fault:
                where = "" if name == "image" else f"{name}: "
                return Rejected(key, f"{where}{fault}")
            if header is not None:
                headers[name] = header
        return Checked(key, prepared, headers)
