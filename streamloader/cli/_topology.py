"""``streamloader topology``: what this process may use, and the seats that follow."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import click

from streamloader.cli._options import output_options
from streamloader.cli._output import ExitCode, Output, printable
from streamloader.topology import (
    Machine,
    PinWorkers,
    Seats,
    format_cpu_list,
    plan_seats,
    read_machine,
    visible_cuda,
)


@click.command()
@click.option(
    "--ranks",
    type=click.IntRange(1),
    help="Ranks on this machine; by default one for each GPU, or one.",
)
@click.option("--num-workers", type=click.IntRange(1), help="Decode threads of all ranks together.")
@click.option(
    "--pin-workers",
    "pin",
    type=click.Choice(get_args(PinWorkers)),
    default="node",
    show_default=True,
)
@output_options
def command(ranks: int | None, num_workers: int | None, pin: PinWorkers, output: Output) -> int:
    """Show the CPUs, NUMA nodes and GPUs that this process may use, and the seats that follow.

    The seats are those of ranks that a launcher starts here and binds no further.
    """
    machine = replace(read_machine(cuda=visible_cuda()), own_mask=False)
    gpus = len(machine.gpus)
    count = ranks or max(1, gpus)
    planned = [
        plan_seats(
            machine,
            local_rank=rank,
            local_world_size=count,
            gpu=rank % gpus if gpus else None,
            num_workers=num_workers,
            pin=pin,
        )
        for rank in range(count)
    ]
    output.result(
        {**_machine_values(machine), "seats": [_seat_values(seats) for seats in planned]},
        [*_machine_lines(machine), *(_seat_line(seats) for seats in planned)],
    )
    for reason in dict.fromkeys(seats.unbound_because for seats in planned):
        if reason:
            output.warn(f"workers and slots stay on any NUMA node: {reason}")
    return ExitCode.DONE


def _machine_values(machine: Machine) -> dict[str, Any]:
    return {
        "cpus": {
            "allowed": sorted(machine.allowed),
            "usable": machine.usable_cpus,
            "quota": machine.quota,
            "cores": [list(core) for core in machine.cores],
        },
        "nodes": [{"node": node.index, "cpus": sorted(node.cpus)} for node in machine.nodes],
        "gpus": [
            {
                "device": f"cuda:{gpu.index}",
                "name": gpu.name,
                "pci": gpu.pci,
                "node": gpu.node,
                "unknown_because": gpu.unknown_because or None,
            }
            for gpu in machine.gpus
        ],
    }


def _seat_values(seats: Seats) -> dict[str, Any]:
    return {
        "local_rank": seats.local_rank,
        "device": _device(seats),
        "node": None if seats.node is None else seats.node.index,
        "workers": [sorted(cpus) for cpus in seats.workers],
        "unbound_because": seats.unbound_because or None,
    }


def _device(seats: Seats) -> str:
    return "cpu" if seats.gpu is None else f"cuda:{seats.gpu}"


def _machine_lines(machine: Machine) -> list[str]:
    quota = "no quota" if machine.quota is None else f"quota {machine.quota:g}"
    return [
        f"CPUs {format_cpu_list(machine.allowed)}: {len(machine.allowed)} allowed on"
        f" {len(machine.cores)} cores, {quota}, {machine.usable_cpus} usable",
        *(
            f"NUMA node {node.index}: "
            + (f"CPUs {format_cpu_list(node.cpus)}" if node.cpus else "no CPU allowed")
            for node in machine.nodes
        ),
        *(
            f"cuda:{gpu.index} {printable(gpu.name)} at {gpu.pci or 'an unknown address'}: "
            + (f"no node, {gpu.unknown_because}" if gpu.node is None else f"NUMA node {gpu.node}")
            for gpu in machine.gpus
        ),
    ]


def _seat_line(seats: Seats) -> str:
    """The rank's workers, with runs of equal seats told once."""
    runs: list[tuple[str, int]] = []
    for cpus in seats.workers:
        place = f"on {format_cpu_list(cpus)}" if cpus else "anywhere"
        if runs and runs[-1][0] == place:
            runs[-1] = (place, runs[-1][1] + 1)
        else:
            runs.append((place, 1))
    told = ", ".join(f"{count} {place}" for place, count in runs)
    return f"rank {seats.local_rank} on {_device(seats)}, workers: {told}"
