"""The same bytes from a Ray cluster, whatever its size, and when it loses workers."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from streamloader.convert import RejectedError, append, conversion, convert, verify
from streamloader.convert.sources.folder import FolderSource
from streamloader.convert.sources.places import open_place

ray = pytest.importorskip("ray")

pytestmark = [
    # Ray leaves sockets and subprocesses of its own to the interpreter's exit.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.timeout(300),
]

Contents = Callable[[Path], dict[str, bytes]]


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.mark.parametrize("jobs", [1, 2, 4])
def test_the_same_bytes_for_any_number_of_workers(
    cluster: None, class_tree: Path, tmp_path: Path, contents: Contents, jobs: int
) -> None:
    (class_tree / "bee" / "07.jpg").write_bytes(b"not a picture")
    convert(class_tree, tmp_path / "local", shard_bytes="8kb")
    report = convert(class_tree, tmp_path / "ray", shard_bytes="8kb", jobs=jobs, engine="ray")
    assert report.samples == 59
    assert [reject.path for reject in report.rejected] == ["bee/07.jpg"]
    assert contents(tmp_path / "ray") == contents(tmp_path / "local")


def test_a_part_of_a_lost_worker_is_done_again(
    cluster: None, class_tree: Path, tmp_path: Path, contents: Contents
) -> None:
    convert(class_tree, tmp_path / "local", shard_bytes="8kb")
    lethal = _sabotaged(class_tree, tmp_path / "died", _die_once)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(conversion, "open_source", lambda *args: lethal)
        convert(class_tree, tmp_path / "ray", shard_bytes="8kb", engine="ray", jobs=1)
    assert (tmp_path / "died").exists()
    after = contents(tmp_path / "ray")
    kept = {name: data for name, data in after.items() if not name.startswith(".unfinished-")}
    assert kept == contents(tmp_path / "local")
    assert verify(tmp_path / "ray", decode=True, sha256=True).ok


def test_the_failure_of_a_worker_is_that_of_the_command(
    cluster: None, class_tree: Path, tmp_path: Path
) -> None:
    source = _sabotaged(class_tree, tmp_path, _fail)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(conversion, "open_source", lambda *args: source)
        with pytest.raises(OSError, match="this worker fails"):
            convert(class_tree, tmp_path / "out", engine="ray")
    assert not list((tmp_path / "out").glob("*.json"))


def test_too_many_rejects_stop_the_cluster(cluster: None, class_tree: Path, tmp_path: Path) -> None:
    for number in range(20):
        (class_tree / "ant" / f"{number:02d}.jpg").write_bytes(bytes(700))
    with pytest.raises(RejectedError, match="more than 2 bad"):
        convert(class_tree, tmp_path / "out", shard_bytes="8kb", max_rejects=2, engine="ray")


def test_what_is_stored_is_not_stored_again_and_appended_to(
    cluster: None, class_tree: Path, tmp_path: Path, contents: Contents
) -> None:
    for name, engine in (("local", "local"), ("ray", "ray")):
        convert(class_tree, tmp_path / name, shard_bytes="8kb", engine=engine)
        append(class_tree, tmp_path / name, shard_bytes="16kb", engine=engine)
    assert contents(tmp_path / "ray") == contents(tmp_path / "local")


def _sabotaged(folder: Path, marker: Path, harm: Callable[[Path], None]) -> Any:
    """Return a source that does harm when it is read by a worker."""

    @dataclasses.dataclass(frozen=True, eq=False)
    class Sabotaged(FolderSource):
        @contextlib.contextmanager
        def reading(self) -> Iterator[Any]:
            harm(marker)
            with FolderSource.reading(self) as read:
                yield read

    source = FolderSource.scan(open_place(str(folder)))
    return Sabotaged(source.place, source.listing, source.files)


def _die_once(marker: Path) -> None:
    if not marker.exists():
        marker.touch()
        os.kill(os.getpid(), 9)


def _fail(marker: Path) -> None:
    raise OSError("this worker fails")
