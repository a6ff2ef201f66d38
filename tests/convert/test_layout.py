"""What a folder is taken for: classes, splits, flat, and what is left out."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from streamloader.convert.report import RejectKind
from streamloader.convert.sources.folder_layout import FolderLayout, read_layout
from streamloader.convert.sources.places import open_place
from streamloader.errors import ConfigError

EXPECTED = json.loads(
    (Path(__file__).parents[1] / "hostile" / "expected_trees.json").read_text(encoding="utf-8")
)
MakeTree = Callable[[str], Path]


def read_source(root: Path) -> FolderLayout:
    return read_layout(open_place(str(root)))


def keys(source: FolderLayout) -> list[str]:
    return [picture.path for split in source.splits for picture in split.pictures]


def touch(root: Path, *names: str) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"\xff\xd8\xff")


@pytest.mark.parametrize("name", [n for n, e in EXPECTED.items() if e["outcome"] != "error"])
def test_classes_of_a_hostile_tree(hostile_tree: MakeTree, name: str) -> None:
    assert list(read_source(hostile_tree(name)).classes) == EXPECTED[name]["classes"]


def test_every_odd_name_is_kept_as_it_is(hostile_tree: MakeTree) -> None:
    assert keys(read_source(hostile_tree("names"))) == EXPECTED["names"]["samples"]


def test_an_empty_folder_is_refused_with_the_layout_wanted(hostile_tree: MakeTree) -> None:
    with pytest.raises(ConfigError, match=r"no pictures in .*; wanted are class folders"):
        read_source(hostile_tree("empty_root"))


@pytest.mark.parametrize("kind", ["missing", "file"])
def test_a_source_that_is_no_folder_is_refused(tmp_path: Path, kind: str) -> None:
    source = tmp_path / "source"
    if kind == "file":
        source.write_bytes(b"x")
    with pytest.raises(
        ConfigError, match="does not exist" if kind == "missing" else "not a folder"
    ):
        read_source(source)


def test_an_empty_class_keeps_its_label_and_is_named(hostile_tree: MakeTree) -> None:
    source = read_source(hostile_tree("empty_class"))
    assert source.splits[0].labels is not None
    assert source.splits[0].labels.tolist() == [0, 2]
    assert any("bee" in warning for warning in source.warnings)


def test_links_are_followed_once_and_broken_ones_are_named(hostile_tree: MakeTree) -> None:
    source = read_source(hostile_tree("symlinks"))
    assert keys(source) == ["c/link.jpg", "c/real.jpg"]
    assert [(r.path, r.kind) for r in source.rejects] == [("c/dead.jpg", RejectKind.BAD)]
    assert "broken link to" in source.rejects[0].reason
    assert any("c/loop" in w and "c/up" in w for w in source.warnings)


def test_a_linked_folder_is_read_where_it_really_is(tmp_path: Path) -> None:
    touch(tmp_path, "z/1.jpg")
    (tmp_path / "a").symlink_to("z")
    source = read_source(tmp_path)
    assert keys(source) == ["z/1.jpg"]
    assert source.classes == ("z",)


def test_a_link_to_a_folder_outside_is_followed(tmp_path: Path) -> None:
    touch(tmp_path, "outside/1.jpg", "source/cat/0.jpg")
    (tmp_path / "source" / "dog").symlink_to(tmp_path / "outside")
    assert keys(read_source(tmp_path / "source")) == ["cat/0.jpg", "dog/1.jpg"]


def test_hidden_files_and_folders_are_listed_as_hidden(hostile_tree: MakeTree) -> None:
    source = read_source(hostile_tree("hidden"))
    assert keys(source) == ["cat/a.jpg", "dog/a.jpg"]
    assert {reject.kind for reject in source.rejects} == {RejectKind.HIDDEN}
    assert {reject.path for reject in source.rejects} == {
        ".DS_Store",
        ".ipynb_checkpoints",
        "__MACOSX",
        "cat/.DS_Store",
        "cat/._a.jpg",
        "cat/.ipynb_checkpoints",
        "dog/Thumbs.db",
        "dog/desktop.ini",
    }


def test_special_files_are_named_and_never_opened(tmp_path: Path) -> None:
    touch(tmp_path, "c/1.jpg", "c/folder.jpg/2.jpg")
    os.mkfifo(tmp_path / "c" / "fifo.jpg")
    os.mkfifo(tmp_path / "c" / "fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "c" / "sock.png"))
        source = read_source(tmp_path)
    assert keys(source) == ["c/1.jpg"]
    assert [(r.path, r.reason, r.kind) for r in source.rejects] == [
        ("c/fifo", "a FIFO, not a regular file", RejectKind.OTHER),
        ("c/fifo.jpg", "a FIFO, not a regular file", RejectKind.BAD),
        ("c/folder.jpg", "a folder, not a regular file", RejectKind.BAD),
        ("c/sock.png", "a socket, not a regular file", RejectKind.BAD),
    ]


def test_a_picture_without_a_picture_name_is_found_by_its_first_bytes(tmp_path: Path) -> None:
    touch(tmp_path, "c/1.JpEg", "c/no_extension", "c/2.dat")
    (tmp_path / "c" / "readme.txt").write_text("hello")
    source = read_source(tmp_path)
    assert keys(source) == ["c/1.JpEg", "c/2.dat", "c/no_extension"]
    assert [(r.path, r.kind) for r in source.rejects] == [("c/readme.txt", RejectKind.OTHER)]


def test_a_flat_folder_has_no_labels(tmp_path: Path) -> None:
    touch(tmp_path, "2.jpg", "10.png")
    source = read_source(tmp_path)
    assert keys(source) == ["10.png", "2.jpg"]
    assert source.classes == ()
    assert source.splits[0].labels is None


def test_pictures_beside_class_folders_are_refused_by_name(tmp_path: Path) -> None:
    touch(tmp_path, "loose.jpg", "cat/1.jpg")
    with pytest.raises(ConfigError, match=r"cat/1.jpg.*loose.jpg"):
        read_source(tmp_path)


def test_splits_share_one_class_list(tmp_path: Path) -> None:
    touch(tmp_path, "train/a/1.jpg", "train/c/1.jpg", "val/b/1.jpg", "val/c/1.jpg")
    source = read_source(tmp_path)
    assert source.classes == ("a", "b", "c")
    assert [split.name for split in source.splits] == ["train", "val"]
    labels = [split.labels for split in source.splits]
    assert [label.tolist() for label in labels if label is not None] == [[0, 2], [1, 2]]
    assert any("in train: b" in warning for warning in source.warnings)


def test_flat_splits_have_no_labels(tmp_path: Path) -> None:
    touch(tmp_path, "train/1.jpg", "test/1.jpg")
    source = read_source(tmp_path)
    assert [split.name for split in source.splits] == ["test", "train"]
    assert source.classes == ()


def test_one_more_folder_makes_train_and_val_classes(tmp_path: Path) -> None:
    touch(tmp_path, "train/1.jpg", "val/1.jpg", "other/1.jpg")
    source = read_source(tmp_path)
    assert source.classes == ("other", "train", "val")
    assert [split.name for split in source.splits] == [None]


def test_labels_of_one_split_without_classes_are_not_invented(tmp_path: Path) -> None:
    touch(tmp_path, "train/a/1.jpg", "test/1.jpg")
    with pytest.raises(ConfigError, match=r"train/a/1.jpg.*test/1.jpg"):
        read_source(tmp_path)


def test_a_split_without_pictures_is_left_out_with_a_warning(tmp_path: Path) -> None:
    touch(tmp_path, "train/a/1.jpg")
    (tmp_path / "val" / "a").mkdir(parents=True)
    source = read_source(tmp_path)
    assert [split.name for split in source.splits] == ["train"]
    assert any("split val" in warning for warning in source.warnings)


def test_names_that_are_not_utf8_are_kept(tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path) + b"/c\xe9"
    os.mkdir(folder)
    with open(folder + b"/\xff.jpg", "wb") as file:
        file.write(b"\xff\xd8\xff")
    source = read_source(tmp_path)
    assert [os.fsencode(key) for key in keys(source)] == [b"c\xe9/\xff.jpg"]


def test_an_unreadable_folder_stops_the_conversion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    touch(tmp_path, "a/1.jpg", "b/1.jpg")
    real_scandir = os.scandir

    def scandir(path: str) -> object:
        if str(path).endswith("/b"):
            raise PermissionError(13, "Permission denied", path)
        return real_scandir(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(ConfigError, match=r"cannot read the folder .*/b: Permission denied"):
        read_source(tmp_path)


def test_the_listing_does_not_depend_on_the_order_of_the_file_system(tmp_path: Path) -> None:
    names = [f"{c}/{n}.jpg" for c in "abc" for n in range(5)]
    touch(tmp_path / "one", *names)
    touch(tmp_path / "two", *reversed(names))
    assert keys(read_source(tmp_path / "one")) == keys(read_source(tmp_path / "two"))
    assert np.array_equal(
        read_source(tmp_path / "one").splits[0].labels,
        read_source(tmp_path / "two").splits[0].labels,
    )
