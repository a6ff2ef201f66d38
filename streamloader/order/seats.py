"""Seats: which device a worker serves, and which rows of the device's batches are its own.

Worker t of T serves device ``t % W`` of W as its worker ``j = t // W``; with M = T / W workers a
device, its n-th sample is the device's sample ``n * M + j``, which is row ``g % B`` of batch
``g // B``. Every row has one seat, known in advance, with no lock and no counter.
"""

from __future__ import annotations

from streamloader.errors import ConfigError
from streamloader.order.spec import checked_int

_MOST = 1 << 31


def seat_of(t: int, num_devices: int, num_workers: int) -> tuple[int, int]:
    """Device that worker t serves, and its number j among that device's workers.

    Args:
        t: the worker, in [0, num_workers).
        num_devices: devices W.
        num_workers: workers T over all devices, a multiple of W.

    Raises:
        ConfigError: T is no multiple of W, or an argument is out of range.
    """
    num_devices = checked_int("num_devices", num_devices, 1, _MOST)
    num_workers = checked_int("num_workers", num_workers, 1, _MOST)
    if num_workers % num_devices:
        raise ConfigError(
            f"num_workers must be a multiple of the number of devices, {num_devices}, "
            f"so that each has as many; got {num_workers}"
        )
    j, device = divmod(checked_int("t", t, 0, num_workers - 1), num_devices)
    return device, j


def share_rows(batch_number: int, batch_size: int, workers: int, worker: int) -> slice:
    """Rows of one device's batch that seat ``worker`` of ``workers`` has: a slice, maybe empty.

    Args:
        batch_number: the batch, counted from the epoch's first.
        batch_size: rows of every full batch, B.
        workers: workers of the device, M.
        worker: the seat, j.

    Raises:
        ConfigError: an argument is out of range.
    """
    batch_number = checked_int("batch_number", batch_number, 0, 1 << 62)
    batch_size = checked_int("batch_size", batch_size, 1, _MOST)
    workers = checked_int("workers", workers, 1, _MOST)
    worker = checked_int("worker", worker, 0, workers - 1)
    return slice((worker - batch_number * batch_size) % workers, batch_size, workers)
