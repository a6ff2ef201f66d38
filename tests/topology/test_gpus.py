"""A GPU's NUMA node is found by its PCI address."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from streamloader.topology import read_machine

DGX = [f"0000:{bus}:00.0" for bus in ("1b", "43", "52", "61", "9d", "c3", "d1", "df")]


def gpus_of(root, cuda):
    return read_machine(root, affinity={0}, cuda=cuda).gpus


def test_eight_gpus_hang_on_two_nodes(make_root, make_cuda):
    gpus = gpus_of(make_root("two_nodes_eight_gpus"), make_cuda(DGX))
    assert [gpu.node for gpu in gpus] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert [gpu.index for gpu in gpus] == list(range(8))
    assert [gpu.pci for gpu in gpus] == DGX


def test_permuted_visible_devices_keep_their_nodes(make_root, make_cuda):
    order = [7, 0, 5, 2]
    gpus = gpus_of(make_root("two_nodes_eight_gpus"), make_cuda([DGX[i] for i in order]))
    assert [(gpu.index, gpu.node) for gpu in gpus] == [(0, 1), (1, 0), (2, 1), (3, 0)]


def test_a_domain_of_more_than_four_digits_is_found(make_root, make_cuda):
    root = make_root(files={"sys/bus/pci/devices/10000:0a:1f.0/numa_node": "1\n"})
    (gpu,) = gpus_of(root, make_cuda(["10000:0A:1F.0"]))
    assert (gpu.pci, gpu.node) == ("10000:0a:1f.0", 1)


def test_minus_one_is_no_node(make_root, make_cuda):
    (gpu,) = gpus_of(make_root("one_node_smt"), make_cuda(["0000:01:00.0"]))
    assert gpu.node is None
    assert gpu.unknown_because == "the system does not know the node of 0000:01:00.0"


@pytest.mark.parametrize("content", [None, "", "zero"])
def test_an_unreadable_node_is_no_node_and_names_the_file(make_root, make_cuda, content):
    path = "sys/bus/pci/devices/0000:02:00.0/numa_node"
    root = make_root(files={} if content is None else {path: content})
    (gpu,) = gpus_of(root, make_cuda(["0000:02:00.0"]))
    assert gpu.node is None
    assert path in gpu.unknown_because


def test_a_torch_that_tells_no_address_leaves_the_node_open(make_root):
    cuda = SimpleNamespace(
        device_count=lambda: 1, get_device_properties=lambda index: SimpleNamespace(name="GPU")
    )
    (gpu,) = gpus_of(make_root("two_nodes_eight_gpus"), cuda)
    assert (gpu.pci, gpu.node) == (None, None)
    assert "torch" in gpu.unknown_because
