import logging

import pytest

from streamloader import ConfigError
from streamloader._world import World, detect_world


def test_a_process_without_launcher_is_alone():
    assert detect_world(environ={}) == World(0, 1, 0, 1)


def test_the_launchers_environment_counts():
    env = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}
    assert detect_world(environ=env) == World(5, 8, 1, 4)


def test_arguments_win_over_the_environment():
    env = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"}
    world = detect_world(rank=1, world_size=2, local_rank=1, local_world_size=2, environ=env)
    assert world == World(1, 2, 1, 2)


@pytest.mark.parametrize("env", [{"RANK": "0"}, {"WORLD_SIZE": "2"}])
def test_half_an_environment_is_refused(env):
    with pytest.raises(ConfigError, match="RANK and WORLD_SIZE"):
        detect_world(environ=env)


def test_half_the_arguments_are_refused():
    with pytest.raises(ConfigError, match="go together"):
        detect_world(rank=1, environ={})


@pytest.mark.parametrize(("rank", "size"), [(2, 2), (-1, 2), (0, 0)])
def test_a_rank_outside_its_world_is_refused(rank, size):
    with pytest.raises(ConfigError, match="rank must lie"):
        detect_world(rank=rank, world_size=size, environ={})


def test_a_number_that_is_none_names_its_variable():
    with pytest.raises(ConfigError, match="WORLD_SIZE must be a number"):
        detect_world(environ={"RANK": "0", "WORLD_SIZE": "many"})


def test_several_ranks_without_their_number_on_the_node_give_a_warning(caplog):
    with caplog.at_level(logging.WARNING, "streamloader"):
        world = detect_world(rank=0, world_size=4, environ={})
    assert world.local_world_size == 1
    assert "local_world_size" in caplog.text
