import numpy as np

from streamloader.fetch.pieces import PieceTable, Wanted


def ints(*values):
    return np.array(values, np.int64)


def test_wanted_lists_each_piece_once_with_its_rows():
    wanted = Wanted.of(ints(7, 3, 7), ints(70, 30, 70), ints(5, 6, 5), ints(2, 4, 2))
    assert wanted.ids.tolist() == [3, 7]
    assert wanted.rows.tolist() == [1, 2]
    assert wanted.first.tolist() == [30, 70]
    assert wanted.ids[wanted.place].tolist() == [7, 3, 7]


def test_a_piece_stays_until_all_its_samples_were_used_and_released():
    table = PieceTable(capacity=1)
    slot = table.add(9, first=90, count=3, last_demand=100, base=0)
    slots = table.slots_of(ints(9))
    assert slots.tolist() == [slot]
    table.ready[slot] = True
    table.use(slots, ints(2))
    assert table.release(slots).tolist() == []
    table.use(slots, ints(1))
    assert table.release(slots).tolist() == [slot]


def test_a_piece_that_no_later_demand_can_name_is_finished():
    table = PieceTable()
    slot = table.add(9, first=90, count=3, last_demand=4, base=0)
    table.use(ints(slot), ints(1))
    assert table.finish_up_to(4).tolist() == []
    assert table.release(ints(slot)).tolist() == [slot]


def test_the_table_grows_and_finds_what_is_left_after_removals():
    table = PieceTable(capacity=2)
    slots = {
        piece: table.add(piece, first=0, count=1, last_demand=0, base=piece)
        for piece in (50, 10, 30, 20, 40)
    }
    table.remove(ints(slots[30], slots[50]))
    found = table.slots_of(ints(10, 20, 30, 40, 50))
    assert found.tolist() == [slots[10], slots[20], -1, slots[40], -1]
    assert len(table) == 3
    assert table.base[slots[40]] == 40


def test_only_ready_and_unused_pieces_are_idle_and_the_longest_needed_comes_first():
    table = PieceTable()
    a = table.add(1, first=0, count=1, last_demand=5, base=0)
    b = table.add(2, first=0, count=1, last_demand=9, base=0)
    c = table.add(3, first=0, count=1, last_demand=7, base=0)
    d = table.add(4, first=0, count=1, last_demand=8, base=0)
    table.ready[[a, b, c]] = True
    table.use(ints(c), ints(1))
    assert table.idle(keep=ints()).tolist() == [b, a]
    assert table.idle(keep=ints(b)).tolist() == [a]
    assert d not in table.idle(keep=ints())
