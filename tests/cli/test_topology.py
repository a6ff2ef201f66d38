"""``streamloader topology``: what of the machine may be used, and the seats that follow."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace

import pytest
from click.testing import Result

from streamloader.topology import Gpu, Machine, NumaNode

RunCli = Callable[..., Result]

MACHINE = Machine(
    allowed=frozenset(range(8)),
    quota=6.5,
    own_mask=True,
    nodes=(NumaNode(0, frozenset(range(4))), NumaNode(1, frozenset(range(4, 8)))),
    cores=tuple((cpu,) for cpu in range(8)),
    gpus=(Gpu(0, "H200", "0000:9d:00.0", 1), Gpu(1, "H200", "0000:1b:00.0", 0)),
)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[[Machine], None]:
    def use(machine: Machine) -> None:
        monkeypatch.setattr("streamloader.cli._topology.read_machine", lambda cuda: machine)

    return use


def test_the_live_machine_is_told_without_a_gpu(run_cli: RunCli) -> None:
    result = run_cli("topology", "--json")
    assert result.exit_code == 0
    values = json.loads(result.stdout)
    assert values.keys() == {"cpus", "nodes", "gpus", "seats"}
    assert values["cpus"]["allowed"] == sorted(os.sched_getaffinity(0))
    assert 1 <= values["cpus"]["usable"] <= len(values["cpus"]["allowed"])
    assert len(values["seats"]) == max(1, len(values["gpus"]))
    assert "usable" in run_cli("topology").stdout


def test_a_machine_without_torch_has_no_gpus(
    run_cli: RunCli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = run_cli("topology", "--json")
    assert result.exit_code == 0
    values = json.loads(result.stdout)
    assert values["gpus"] == []
    assert [seat["device"] for seat in values["seats"]] == ["cpu"]


def test_gpus_give_a_rank_each(run_cli: RunCli, machine: Callable[[Machine], None]) -> None:
    machine(MACHINE)
    values = json.loads(run_cli("topology", "--json").stdout)
    assert values["cpus"]["quota"] == 6.5
    assert values["cpus"]["usable"] == 7
    assert [(gpu["device"], gpu["pci"], gpu["node"]) for gpu in values["gpus"]] == [
        ("cuda:0", "0000:9d:00.0", 1),
        ("cuda:1", "0000:1b:00.0", 0),
    ]
    assert [(seat["device"], seat["node"]) for seat in values["seats"]] == [
        ("cuda:0", 1),
        ("cuda:1", 0),
    ]
    assert values["seats"][0]["workers"] == [[4, 5, 6, 7]] * 3


def test_people_see_seats_in_the_kernels_lists(
    run_cli: RunCli, machine: Callable[[Machine], None]
) -> None:
    machine(MACHINE)
    lines = run_cli("topology", "--num-workers", 10).stdout.splitlines()
    assert lines == [
        "CPUs 0-7: 8 allowed on 8 cores, quota 6.5, 7 usable",
        "NUMA node 0: CPUs 0-3",
        "NUMA node 1: CPUs 4-7",
        "cuda:0 H200 at 0000:9d:00.0: NUMA node 1",
        "cuda:1 H200 at 0000:1b:00.0: NUMA node 0",
        "rank 0 on cuda:0, workers: 3 on 4-7, 2 anywhere",
        "rank 1 on cuda:1, workers: 3 on 0-3, 2 anywhere",
    ]


def test_options_choose_ranks_workers_and_pinning(
    run_cli: RunCli, machine: Callable[[Machine], None]
) -> None:
    machine(MACHINE)
    values = json.loads(
        run_cli(
            "topology", "--ranks", 4, "--num-workers", 4, "--pin-workers", "core", "--json"
        ).stdout
    )
    assert [seat["workers"] for seat in values["seats"]] == [[[5]], [[1]], [[7]], [[3]]]


def test_a_gpu_whose_node_is_unknown_is_a_warning_and_no_failure(
    run_cli: RunCli, machine: Callable[[Machine], None]
) -> None:
    lost = Gpu(0, "H200", "0000:9d:00.0", None, "the system does not know the node of 0000:9d:00.0")
    machine(replace(MACHINE, gpus=(lost,)))
    result = run_cli("topology", "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["seats"][0]["unbound_because"].startswith("cuda:0: ")
    assert result.stderr.count("warning: ") == 1
    assert "no node, the system does not know" in run_cli("topology").stdout


@pytest.mark.parametrize("option", [("--ranks", "0"), ("--pin-workers", "numa")])
def test_options_that_cannot_be_end_with_two(run_cli: RunCli, option: tuple[str, str]) -> None:
    assert run_cli("topology", *option).exit_code == 2
