import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamloader.topology import format_cpu_list, parse_cpu_list


@pytest.mark.parametrize(
    ("text", "cpus"),
    [("", []), ("\n", []), ("5\n", [5]), ("0-2,4-7\n", [0, 1, 2, 4, 5, 6, 7]), ("0,112", [0, 112])],
)
def test_the_kernels_lists_are_read(text, cpus):
    assert parse_cpu_list(text) == set(cpus)


@pytest.mark.parametrize("text", ["many", "1-", "1-x", "-3"])
def test_another_syntax_is_refused(text):
    with pytest.raises(ValueError):
        parse_cpu_list(text)


@given(st.frozensets(st.integers(0, 300)))
def test_what_is_written_is_read_back(cpus):
    text = format_cpu_list(cpus)
    assert parse_cpu_list(text) == cpus
    runs = sum(cpu - 1 not in cpus for cpu in cpus)
    assert len(text.split(",")) == max(1, runs)
