import itertools

import pytest

from streamloader.errors import ConfigError
from streamloader.order import seat_of, share_rows


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 7, 16])
@pytest.mark.parametrize("batch_size", [1, 2, 3, 5, 8, 9])
def test_every_row_has_exactly_one_seat(workers: int, batch_size: int) -> None:
    for number in range(2 * workers + 1):
        rows = list(range(batch_size))
        shares = [rows[share_rows(number, batch_size, workers, j)] for j in range(workers)]
        assert sorted(itertools.chain(*shares)) == rows


@pytest.mark.parametrize(("workers", "batch_size"), [(3, 5), (4, 8), (5, 2), (1, 3)])
def test_a_workers_nth_sample_is_the_devices_n_m_plus_j(workers: int, batch_size: int) -> None:
    batches = 12
    for j in range(workers):
        taken = [
            number * batch_size + row
            for number in range(batches)
            for row in range(batch_size)[share_rows(number, batch_size, workers, j)]
        ]
        assert taken == list(range(j, batches * batch_size, workers))


@pytest.mark.parametrize("num_devices", range(1, 6))
@pytest.mark.parametrize("per_device", range(1, 5))
def test_every_device_gets_each_of_its_seats_once(num_devices: int, per_device: int) -> None:
    total = num_devices * per_device
    seats = [seat_of(t, num_devices, total) for t in range(total)]
    assert seats == [(t % num_devices, t // num_devices) for t in range(total)]
    assert sorted(seats) == [(d, j) for d in range(num_devices) for j in range(per_device)]


def test_workers_that_do_not_divide_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"multiple of the number of devices, 3, .*got 8"):
        seat_of(0, 3, 8)


def test_seats_out_of_range_are_refused() -> None:
    with pytest.raises(ConfigError, match="t must be an integer from 0 to 3, got 4"):
        seat_of(4, 2, 4)
    with pytest.raises(ConfigError, match="worker must be an integer from 0 to 1, got 2"):
        share_rows(0, 8, 2, 2)
