"""Pieces of local files that are brought in together, against the same pieces one by one."""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
from steered_store import Steered

from storage_backends import NotFound, Truncated, open_store
from streamloader import DatasetWriter
from streamloader.fetch import Arena, Catalog, Prefetcher
from streamloader.fetch.native_kernel import lib
from streamloader.fetch.piece import Room
from streamloader.fetch.piece_group import GroupReader, PlacedPiece, Stop, divide
from streamloader.fetch.piece_loader import PieceLoader
from streamloader.monitor import Counters
from streamloader.order import EpochOrder, OrderSpec, RankPlan, Selection

NUM = 70

pytestmark = pytest.mark.skipif(lib is None, reason="needs the native part")

FIELDS = {
    "image": "picture",
    "box": "f4:[4]",
    "label": "int64",
    "note": "utf8",
    "grid": "u1:[40,5]",
}


def sample(number: int) -> dict[str, object]:
    from picture_sets import picture

    return {
        "image": picture(number),
        "box": np.arange(4, dtype=np.float32) + number,
        "label": number,
        "note": "x" * (number % 5),
        "grid": np.full((40, 5), number % 256, np.uint8),
    }


def write(path: Path, count: int = NUM, **options) -> Path:
    wanted = {"shard_bytes": 30_000, "block_samples": 4, **options}
    with DatasetWriter(path, FIELDS, **wanted) as writer:
        for number in range(count):
            writer.write(sample(number), key=str(number))
    return path


@pytest.fixture(scope="module")
def dataset(tmp_path_factory) -> Path:
    return write(tmp_path_factory.mktemp("group") / "set")


async def nothing(key, offset):
    return None


async def load(dataset, *, together, verify=True, selection=None, counters=None):
    """All samples in pieces of a few, brought in as groups or each by itself.

    Returns the rows with the bytes that they point to, and the faults.
    """
    counters = counters or Counters()
    async with open_store(str(dataset), counters=counters) as store:
        catalog = await Catalog.open(store if together else Steered(store, nothing))
        arena = Arena(8 << 20)
        loader = PieceLoader(
            catalog, arena, counters=counters, selection=selection, max_reads=4, verify=verify
        )
        try:
            total = catalog.num_samples if selection is None else len(selection)
            rooms = []
            for first in range(0, total, 4):
                count = min(4, total - first)
                nbytes = await loader.room_for(first, count)
                rooms.append(Room(first, count, arena.allocate(nbytes), nbytes))
            groups = loader.divide(rooms)
            assert (max(map(len, groups)) > 1) == together
            pieces = [p for group in groups for p in await loader.load_group(group)]
        finally:
            loader.close()
        return described(catalog, arena, rooms, pieces)


def described(catalog, arena, rooms, pieces):
    layout, found, faults = catalog.row_layout(), [], {}
    for room, piece in zip(rooms, pieces, strict=True):
        assert piece.nbytes <= room.nbytes
        end = piece.rows_base + room.count * layout.stride
        rows = arena.array[piece.rows_base : end].view(layout.dtype)
        for row in rows:
            values = {name: row[name].tolist() for name in layout.columns}
            for name in layout.payload:
                start, length = int(row[f"{name}@offset"]), int(row[f"{name}@length"])
                values[name] = None if length < 0 else bytes(arena.array[start : start + length])
            found.append(values)
        faults.update(piece.faults)
    return found, faults


async def test_a_group_gives_the_rows_that_each_piece_gives_by_itself(dataset):
    ours, faults = await load(dataset, together=True)
    theirs, _ = await load(dataset, together=False)
    assert ours == theirs
    assert not faults
    assert [row["label"] for row in ours] == list(range(NUM))
    assert ours[7]["image"] == sample(7)["image"]
    assert ours[7]["grid"] == bytes([7] * 200)
    assert ours[4]["note"] == b"xxxx"


async def test_pieces_of_a_subset_are_brought_in_together_too(dataset):
    chosen = Selection([3, 4, 5, 20, 33, 34, 69], NUM)
    ours, _ = await load(dataset, together=True, selection=chosen)
    assert [row["label"] for row in ours] == [3, 4, 5, 20, 33, 34, 69]
    assert ours == (await load(dataset, together=False, selection=chosen))[0]


async def test_reads_are_counted_as_those_of_single_pieces(dataset):
    ours, theirs = Counters(), Counters()
    await load(dataset, together=True, counters=ours)
    await load(dataset, together=False, counters=theirs)
    assert ours.count("storage.bytes_read") == theirs.count("storage.bytes_read")
    assert ours.time("storage.read_s").count == theirs.time("storage.read_s").count


def damage(path: Path, number: int) -> None:
    """One byte in the middle of a sample's picture."""
    data = bytearray(path.read_bytes())
    at = bytes(data).index(sample(number)["image"])
    data[at + 100] ^= 1
    path.write_bytes(data)


async def test_damage_in_one_sample_is_named_and_harms_no_other(tmp_path):
    path = write(tmp_path / "set")
    damage(sorted(path.glob("*.dts"))[0], 2)
    counters = Counters()
    ours, faults = await load(path, together=True, counters=counters)
    assert faults == {2: "checksum does not match"}
    assert counters.count("fetch.checksum_rereads") == 1
    assert ours[2]["image"] is None
    assert all(ours[n]["image"] == sample(n)["image"] for n in range(NUM) if n != 2)


async def test_padding_that_is_not_zero_is_a_fault(tmp_path):
    path = write(tmp_path / "set")
    shard = sorted(path.glob("*.dts"))[0]
    data = bytearray(shard.read_bytes())
    image = sample(1)["image"]
    end = bytes(data).index(image) + len(image)
    assert end % 64
    data[end] = 9
    shard.write_bytes(data)
    ours, faults = await load(path, together=True)
    assert faults == {1: "padding is not zero"}
    assert (ours, faults) == await load(path, together=False)


async def test_without_verify_damaged_bytes_are_passed_on(tmp_path):
    path = write(tmp_path / "set")
    damage(sorted(path.glob("*.dts"))[0], 2)
    ours, faults = await load(path, together=True, verify=False)
    assert not faults
    assert len(ours[2]["image"]) == len(sample(2)["image"])
    assert ours[2]["image"] != sample(2)["image"]


@pytest.mark.parametrize(("spoil", "error"), [("cut", Truncated), ("gone", NotFound)])
async def test_a_shard_that_cannot_be_read_is_named_as_ever(tmp_path, spoil, error):
    path = write(tmp_path / "set")
    shard = sorted(path.glob("*.dts"))[1]
    async with open_store(str(path)) as store:
        catalog = await Catalog.open(store)
        arena = Arena(8 << 20)
        loader = PieceLoader(
            catalog, arena, counters=Counters(), selection=None, max_reads=4, verify=True
        )
        for entry in range(len(catalog.manifest.table.names)):
            await catalog.shard_index(entry)
        if spoil == "cut":
            os.truncate(shard, 5_000)
        else:
            store.open_files._reader.close()
            shard.unlink()
        rooms = [
            Room(first, 4, arena.allocate(nbytes), nbytes)
            for first in range(0, 40, 4)
            for nbytes in [await loader.room_for(first, 4)]
        ]
        try:
            with pytest.raises(error, match=shard.name):
                await loader.load_group(rooms)
        finally:
            loader.close()


@asynccontextmanager
async def group_reader(dataset):
    """A reader, its arena, and what makes a piece of the first two samples in a room."""
    async with open_store(str(dataset)) as store:
        catalog = await Catalog.open(store)
        arena = Arena(1 << 20)
        index = await catalog.shard_index(0)
        parts = catalog.blocks.locate(0, 2)

        def piece_in(base, nbytes):
            return PlacedPiece(Room(0, 2, base, nbytes), parts, [index])

        yield GroupReader.open(catalog, arena, catalog.row_layout(), verify=True), arena, piece_in


async def test_a_set_flag_stops_before_the_next_piece(dataset):
    async with group_reader(dataset) as (reader, arena, piece_in):
        piece = piece_in(0, 1 << 19)
        stop = Stop()
        assert reader.read([piece, piece], stop)[1] is not None
        stop.set()
        arena.array[:] = 0
        assert reader.read([piece, piece], stop) == [None, None]
        assert not arena.array.any()


async def test_no_memory_beyond_the_arena_is_written(dataset):
    async with group_reader(dataset) as (reader, arena, piece_in):
        for base in (arena.nbytes, arena.nbytes - 64, -64):
            assert reader.read([piece_in(base, 64)], Stop()) == [None]


def test_groups_are_cut_by_bytes_and_keep_their_order():
    rooms = [Room(n, 1, 0, 1 << 20) for n in range(20)] + [Room(20, 1, 0, 50 << 20)]
    groups = divide(rooms)
    assert [room.first for group in groups for room in group] == list(range(21))
    assert [len(group) for group in groups] == [6, 6, 6, 2, 1]
    assert divide([]) == []


async def test_few_descriptors_are_open_however_many_shards_a_batch_needs(tmp_path):
    path = write(tmp_path / "set", count=400, shard_bytes=3_000, block_samples=1)
    assert len(list(path.glob("*.dts"))) > 150
    before = len(os.listdir("/proc/self/fd"))
    most = 0

    async def deliver(fetched):
        nonlocal most
        most = max(most, len(os.listdir("/proc/self/fd")) - before)
        fetched.release()

    async with open_store(str(path)) as store:
        catalog = await Catalog.open(store)
        spec = OrderSpec.choose(catalog.num_samples, 1, seed=1, shuffle="global")
        plan = RankPlan(EpochOrder(spec, 0), batch_size=200, rank=0, world_size=1)
        prefetcher = Prefetcher(catalog, Arena(32 << 20), counters=Counters())
        try:
            await prefetcher.run(plan, deliver)
        finally:
            prefetcher.close()
    # 64 are kept, 8 may be in use in each of 8 threads, and the loop has a few.
    assert most <= 64 + 8 * 8 + 10


async def test_a_cancelled_run_leaves_the_arena_to_others(dataset):
    async with open_store(str(dataset)) as store:
        catalog = await Catalog.open(store)
        spec = OrderSpec.choose(NUM, 4, seed=1, shuffle=True)
        arena = Arena(4 << 20)
        prefetcher = Prefetcher(catalog, arena, counters=Counters())
        delivered = asyncio.Event()

        async def deliver(fetched):
            delivered.set()
            await asyncio.Event().wait()

        plan = RankPlan(EpochOrder(spec, 0), batch_size=8, rank=0, world_size=1)
        running = asyncio.create_task(prefetcher.run(plan, deliver))
        await delivered.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert arena.used_bytes == 0
        prefetcher.close()
