import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamloader import ConfigError, pipeline_times


def test_the_worked_example_of_four_stages():
    times = pipeline_times([0.012, 0.008, 0.005, 0.020])
    assert times == (0.045, 0.020)
    assert times.serial_s / times.steady_s == pytest.approx(2.25)


@pytest.mark.parametrize(
    ("stages", "wanted"),
    [([0, 1], (1, 1)), ([0.0], (0, 0)), ([-0.0], (0, 0)), ([3], (3, 3)), ((2, 2), (4, 2))],
)
def test_small_pipelines(stages, wanted):
    assert pipeline_times(stages) == wanted


def test_a_generator_and_numpy_numbers_are_stages_too():
    assert pipeline_times(x for x in (1.0, 2.0)) == (3, 2)
    assert pipeline_times(np.array([1.0, 2.0])) == (3, 2)
    assert pipeline_times({"decode": np.float32(0.5), "gpu": 1}) == (1.5, 1)


@pytest.mark.parametrize(
    "stages", [[], {}, [-1e-9], [math.nan], [1, math.nan], [math.inf], [None], ["1"], [True]]
)
def test_what_is_no_time_is_refused_also_as_a_value_error(stages):
    with pytest.raises(ConfigError):
        pipeline_times(stages)
    with pytest.raises(ValueError):
        pipeline_times(stages)


def test_workers_share_a_stage():
    stages = {"read and decode": 1.6, "transfer": 0.05, "gpu": 0.12}
    assert pipeline_times(stages, workers={"read and decode": 16}).steady_s == 0.12
    assert pipeline_times(stages, workers=[8, 1, 1]).steady_s == pytest.approx(0.2)
    assert pipeline_times(stages, workers=2).steady_s == pytest.approx(0.8)


@pytest.mark.parametrize("workers", [0, -1, True, 1.5, [1], [1, 0], {"cpu": 2}])
def test_workers_that_do_not_fit_are_refused(workers):
    with pytest.raises(ConfigError, match="workers"):
        pipeline_times({"decode": 1.0, "gpu": 1.0}, workers=workers)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=20))
def test_overlap_never_costs_and_never_gains_more_than_the_number_of_stages(stages):
    serial, steady = pipeline_times(stages)
    assert max(stages) == steady
    assert steady <= serial * (1 + 1e-12)
    assert serial <= steady * len(stages) * (1 + 1e-12)
