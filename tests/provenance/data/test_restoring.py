"""Recorded data come back byte for byte from DVC's cache, its remote or the folder that has them, or it is said why not."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.data.files.index import index
from orchestrator.errors import NotRerunnable
from orchestrator.provenance.data import hashing, versions
from orchestrator.provenance.data.restoring import Restored, lend_listed, lend_storage, restore
from orchestrator.provenance.data.versions import Input
from tests.provenance.code.repositories import tree_id
from tests.provenance.data.dvc_project import capture, git, listing, work_tree
from tests.refusals import refused

# DVC's own use of a library
pytestmark = [pytest.mark.filterwarnings("ignore:_NoneStep.value will soon raise"), pytest.mark.slow]

PATHS = ["data/imgs", "raw.csv", "made/numbers.txt"]


def bytes_of(folder: Path, paths: list[str]) -> list[str]:
    return [hashing.scan(folder / path).md5 for path in paths]


def forget(project: Path) -> None:
    """The data are gone from the folder: only DVC has them."""
    shutil.rmtree(project / "data" / "imgs")
    (project / "raw.csv").unlink()
    shutil.rmtree(project / "made")


def no_remote(project: Path) -> None:
    (project / ".dvc" / "config").write_text("")


def test_an_old_version_comes_from_the_cache(tracked: Path, tmp_path: Path) -> None:
    """The folder and DVC's files have gone on; nothing of the user's is touched."""
    inputs, before = capture(tracked, PATHS), bytes_of(tracked, PATHS)
    target = work_tree(tracked, tmp_path / "w")
    (tracked / "data/imgs/b.txt").write_text("changed")
    (tracked / "raw.csv").write_text("3,4\n")
    (tracked / "raw.csv.dvc").write_text("outs:\n- md5: 0123\n  hash: md5\n  path: raw.csv\n")
    shutil.rmtree(tracked / "made")
    untouched = listing(tracked)
    assert restore(target, inputs, tracked) == [Restored(path, "cache") for path in PATHS]
    assert bytes_of(target, PATHS) == before
    assert listing(tracked) == untouched


def test_what_the_cache_lacks_comes_from_the_remote(tracked: Path, tmp_path: Path) -> None:
    """Also when the work tree's own settings name no remote: those of the folder count (rule F5)."""
    inputs, before = capture(tracked, PATHS), bytes_of(tracked, PATHS)
    target = work_tree(tracked, tmp_path / "w")
    no_remote(target)
    shutil.rmtree(tracked / ".dvc" / "cache")
    forget(tracked)
    untouched = listing(tracked)
    assert restore(target, inputs, tracked) == [Restored(path, "remote") for path in PATHS]
    assert bytes_of(target, PATHS) == before
    assert listing(tracked) == untouched
    assert restore(target, inputs, tracked) == [Restored(path, "work tree") for path in PATHS]


def test_a_damaged_object_is_found_and_named(tracked: Path, tmp_path: Path) -> None:
    """Same name, size, time and permissions, other bytes: DVC checks it out. A remote heals; without one it is an error."""
    inputs = capture(tracked, ["raw.csv", "data/imgs"])
    object_ = tracked / ".dvc/cache/files/md5" / inputs[0].md5[:2] / inputs[0].md5[2:]
    manifest = tracked / ".dvc/cache/files/md5" / inputs[1].md5[:2] / inputs[1].md5[2:]
    for place in (object_, manifest):
        stat = place.stat()
        place.chmod(0o644)
        place.write_bytes(place.read_bytes().replace(b"1", b"7").replace(b"b", b"c"))
        place.chmod(stat.st_mode & 0o777)
        os.utime(place, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    forget(tracked)
    untouched = listing(tracked)
    target = work_tree(tracked, tmp_path / "w")
    raw, imgs = restore(target, inputs, tracked)
    assert (raw.source, imgs.source) == ("remote", "cache")
    assert f"the object {object_} is damaged" in raw.notes[0]
    assert f"the object {manifest} is damaged" in imgs.notes[0]
    assert listing(tracked) == untouched
    no_remote(tracked)
    with pytest.raises(NotRerunnable) as caught:
        restore(work_tree(tracked, tmp_path / "again"), inputs, tracked)
    assert str(object_) in caught.value.message
    assert "there is no default remote" in caught.value.message


def test_parts_and_what_lies_above(tracked: Path, tmp_path: Path) -> None:
    """A folder in an out, a file in one, and a folder that holds an out beside files of the code."""
    paths = ["data/imgs/deep", "data/imgs/b.txt", "data"]
    inputs, before = capture(tracked, paths), bytes_of(tracked, paths)
    target = work_tree(tracked, tmp_path / "w")
    forget(tracked)
    restored = restore(target, inputs[:1], tracked)
    assert restored == [Restored("data/imgs/deep", "cache")]
    assert not (target / "data/imgs/b.txt").exists()
    restore(target, inputs, tracked)
    assert bytes_of(target, paths) == before


def test_parts_from_the_remote(tracked: Path, tmp_path: Path) -> None:
    inputs = capture(tracked, ["data/imgs/deep", "data/imgs"])
    target = work_tree(tracked, tmp_path / "w")
    shutil.rmtree(tracked / ".dvc" / "cache")
    forget(tracked)
    assert [item.source for item in restore(target, inputs, tracked)] == ["remote", "remote"]


def test_data_that_dvc_never_had_come_from_the_folder_if_unchanged(tracked: Path, tmp_path: Path) -> None:
    inputs = capture(tracked, ["loose.txt", "notes.txt"])
    loose, notes = restore(work_tree(tracked, tmp_path / "w"), inputs, tracked)
    assert (loose.source, notes.source) == ("folder", "work tree")
    assert "loose.txt was copied from" in loose.notes[0]
    (tracked / "loose.txt").write_text("L")
    with refused("dvc.not-restored"):
        restore(work_tree(tracked, tmp_path / "again"), inputs, tracked)


def test_of_data_that_a_stage_can_make_again_it_is_told(tracked: Path, tmp_path: Path) -> None:
    """The cache is empty after `dvc gc`, and nobody thinks of the stage."""
    made, raw = capture(tracked, ["made/numbers.txt", "raw.csv"])
    no_remote(tracked)
    shutil.rmtree(tracked / ".dvc" / "cache")
    for path in (made.path, raw.path):
        (tracked / path).write_text("other")
    again = "; rerun=RUN_ID stages=true has DVC's stages make made/numbers.txt again"
    for inputs, told in [([raw, made], True), ([raw], False), ([replace(made, as_recorded=False)], False)]:
        with refused("dvc.not-restored") as caught:
            restore(work_tree(tracked, tmp_path / "w"), inputs, tracked)
        assert (caught.value.remedy or "").endswith(again) == told
        shutil.rmtree(tmp_path / "w")


def test_a_folder_without_files_is_made(tracked: Path, tmp_path: Path) -> None:
    (tracked / "empty").mkdir()
    (item,) = capture(tracked, ["empty"])
    assert item.obstacle is None
    (tracked / "empty").rmdir()
    restore(work_tree(tracked, tmp_path / "w"), [item], tracked)
    assert list((tmp_path / "w" / "empty").iterdir()) == []


def test_folders_that_hold_nothing_are_made(tracked: Path, tmp_path: Path) -> None:
    """A pipeline may take its classes from the folders of its data: without one all others have another number."""
    for name in ("b/c", "z"):
        (tracked / "data" / "imgs" / name).mkdir(parents=True)
    (item,) = capture(tracked, ["data/imgs"])
    assert item.empty == ("b/c", "z")
    assert versions.from_dict(json.loads(json.dumps(item.as_dict()))) == item
    harmful = replace(item, empty=(*item.empty, "../../../outside", str(tmp_path / "outside")))
    restore(work_tree(tracked, tmp_path / "w"), [harmful], tracked)
    found = tmp_path / "w" / "data" / "imgs"
    assert list((found / "b" / "c").iterdir()) == list((found / "z").iterdir()) == []
    assert not (tmp_path / "outside").exists()


def test_files_that_came_since_do_not_count_where_those_of_the_run_are_known(tracked: Path, tmp_path: Path) -> None:
    """A pipeline writes a cache into its data, which DVC does not have."""
    rows = tracked / "loose" / "imgs" / "rows"
    rows.parent.mkdir(parents=True)
    rows.write_text("1")
    inputs = capture(tracked, ["loose/imgs"])
    (rows.parent / "cache").write_text("c")
    with refused("dvc.not-restored"):
        restore(work_tree(tracked, tmp_path / "w"), inputs, tracked)
    target, names = work_tree(tracked, tmp_path / "again"), {"loose/imgs": {"rows"}}
    assert [each.source for each in restore(target, inputs, tracked, names=names)] == ["folder"]
    assert [each.name for each in (target / "loose" / "imgs").iterdir()] == ["rows"]
    rows.write_text("2")
    with refused("dvc.not-restored"):
        restore(work_tree(tracked, tmp_path / "third"), inputs, tracked, names=names)


def test_data_read_before_they_were_added(tracked: Path, tmp_path: Path) -> None:
    """The disk was ahead of DVC's record; its version was added later, so the cache knows it by its own md5."""
    from dvc.repo import Repo

    (tracked / "raw.csv").write_text("5,6\n")
    inputs = capture(tracked, ["raw.csv"])
    assert inputs[0].obstacle is not None
    target = work_tree(tracked, tmp_path / "w")
    with Repo(str(tracked)) as repository:
        repository.add([str(tracked / "raw.csv")])
    (tracked / "raw.csv").unlink()
    assert restore(target, inputs, tracked) == [Restored("raw.csv", "cache")]
    assert (target / "raw.csv").read_text() == "5,6\n"


def test_nothing_is_written_outside_of_the_work_tree(tracked: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "x.bin").write_bytes(b"x")
    (tracked / "link").symlink_to(elsewhere)
    inputs = capture(tracked, ["../elsewhere/x.bin", str(elsewhere / "x.bin"), "link/x.bin"])
    target = work_tree(tracked, tmp_path / "w")
    assert {item.source for item in restore(target, inputs, tracked)} == {"work tree"}
    (elsewhere / "x.bin").write_bytes(b"y")
    with pytest.raises(NotRerunnable) as caught:
        restore(target, inputs, tracked)
    assert caught.value.message.count("lies outside of the repository") == 3
    assert (elsewhere / "x.bin").read_bytes() == b"y"


def test_a_project_in_a_folder_of_its_repository(tracked: Path, tmp_path: Path) -> None:
    """The DVC project is the one around it, and the input lies beside the project's folder."""
    inputs = capture(tracked / "sub", ["../made/numbers.txt", "../notes.txt"])
    assert inputs[0].stage == "count"
    assert [item.keeper for item in inputs] == ["dvc", "code"]
    target = work_tree(tracked, tmp_path / "w")
    forget(tracked)
    restored = restore(target / "sub", inputs, tracked / "sub", top=target)
    assert [item.source for item in restored] == ["cache", "work tree"]
    assert (target / "made/numbers.txt").read_text() == "123\n"


def test_of_data_outside_it_is_told_whether_they_are_there(tracked: Path, tmp_path: Path) -> None:
    """A restored tree lies elsewhere than the project, so a relative path leads elsewhere from there."""
    outside = tmp_path / "outside"
    outside.mkdir()
    for name in ("near", "far", "gone"):
        (outside / name).write_text(name)
    (tracked / "link").symlink_to(outside)
    inputs = capture(tracked, ["../outside/near", str(outside / "far"), str(outside / "gone"), "link/gone"])
    (outside / "far").write_text("other")
    (outside / "gone").unlink()
    with refused("dvc.not-restored") as caught:
        restore(work_tree(tracked, tmp_path / "w" / "code"), inputs, tracked)
    near, far, gone, linked = caught.value.message.splitlines()[1:]
    assert "name it by an absolute path" in near
    assert far.endswith("writes nothing, and has other bytes now")
    for each in (gone, linked):
        assert each.endswith(f"writes nothing, and {outside / 'gone'} is not there")
    near_too = capture(tracked, [str(outside / "near")])
    assert [item.source for item in restore(work_tree(tracked, tmp_path / "again"), near_too, tracked)] == ["work tree"]


def test_a_link_to_tracked_data(tracked: Path, tmp_path: Path) -> None:
    (tracked / "current").symlink_to("data/imgs")
    inputs = capture(tracked, ["current"])
    assert (inputs[0].place, inputs[0].keeper) == ("data/imgs", "dvc")
    target = work_tree(tracked, tmp_path / "w")
    forget(tracked)
    assert restore(target, inputs, tracked) == [Restored("current", "cache")]
    assert (target / "current").is_symlink()


def test_legacy_objects_are_checked_by_the_hash_of_their_time(tracked: Path, tmp_path: Path) -> None:
    """DVC 2 made CR LF in texts LF before it hashed, and kept objects at other places."""
    from dvc_data.hashfile.hash import file_md5

    (tracked / "old.txt").write_bytes(b"a\r\nb\r\n")
    old = file_md5(str(tracked / "old.txt"), name="md5-dos2unix")
    (tracked / "old.txt.dvc").write_text(f"outs:\n- md5: {old}\n  size: 6\n  path: old.txt\n")
    place = tracked / ".dvc/cache" / old[:2] / old[2:]
    place.parent.mkdir(parents=True)
    shutil.copy(tracked / "old.txt", place)
    (item,) = inputs = capture(tracked, ["old.txt"])
    assert (item.recorded_md5, item.as_recorded, item.in_cache, item.obstacle) == (old, True, True, None)
    assert item.md5 != old
    target = work_tree(tracked, tmp_path / "w")
    (target / "old.txt").unlink()
    (tracked / "old.txt").unlink()
    assert restore(target, inputs, tracked) == [Restored("old.txt", "cache")]
    assert (target / "old.txt").read_bytes() == b"a\r\nb\r\n"
    place.write_bytes(b"a\nb\n")  # DVC would call this the same; a pipeline may not
    (target / "old.txt").unlink()
    with refused("dvc.not-restored"):
        restore(target, inputs, tracked)


def test_no_dvc_at_all(tracked: Path, tmp_path: Path) -> None:
    inputs = capture(tracked, ["raw.csv"])
    target = work_tree(tracked, tmp_path / "w")
    (tmp_path / "bare").mkdir()
    with refused("dvc.not-restored"):
        restore(target, inputs, tmp_path / "bare")


def repository_of(tracked: Path, target: Path) -> Path:
    work_tree(tracked, target)
    git(target, "init", "-q")
    git(target, "add", "-A")
    git(target, "commit", "-q", "-m", "restored")
    return target


def test_whoever_records_the_restored_data_finds_them_where_they_are_kept(tracked: Path) -> None:
    """Below the folder itself, as a rerun does it; the identity of the code stays."""
    inputs = capture(tracked, PATHS)
    target = repository_of(tracked, tracked / ".orchestrator" / "worktrees" / "1" / "code")
    (target / ".dvc" / "config").write_text("[cache]\n    dir = ../elsewhere\n")
    restore(target, inputs, tracked)
    assert [item.in_cache for item in capture(target, PATHS)] == [False] * 3
    before = tree_id(target)
    untouched = listing(tracked / ".dvc")
    lend_storage(target, tracked, target)
    assert tree_id(target) == before
    assert listing(tracked / ".dvc") == untouched
    captured = capture(target, PATHS)
    assert [(item.in_cache, item.obstacle, item.remotes) for item in captured] == [
        (True, None, item.remotes) for item in inputs
    ]


def test_what_was_brought_is_no_code_whoever_had_git_ignore_it(tracked: Path) -> None:
    """`.git/info/exclude`, the settings of a user and files that a sparse checkout leaves out are in no snapshot."""
    (tracked / ".gitignore").write_text("/.dvc/cache\n")
    target = repository_of(tracked, tracked / ".orchestrator" / "worktrees" / "1" / "code")
    odd = tracked / "imgs [1] *\n "
    (tracked / "data/imgs").rename(odd)
    inputs = capture(tracked, [odd.name, "raw.csv"])
    before = tree_id(target)
    assert [item.source for item in restore(target, inputs, tracked)] == ["folder", "cache"]
    assert tree_id(target) == before
    (target / "new.txt").write_text("new")
    assert tree_id(target) != before


def test_a_folder_of_any_name_lends_its_cache(tracked: Path, tmp_path: Path) -> None:
    """DVC reads such a path, and does not write it."""
    place = tracked.rename(tmp_path / "été #1, 'so' said")
    inputs = capture(place, PATHS)
    target = repository_of(place, tmp_path / "w")
    restore(target, inputs, place)
    lend_storage(target, place, target)
    assert [(item.in_cache, item.obstacle) for item in capture(target, PATHS)] == [(True, None)] * 3


def test_a_tree_without_dvc_is_left_alone_and_so_is_the_folder_above(tracked: Path) -> None:
    target = repository_of(tracked, tracked / ".orchestrator" / "worktrees" / "1" / "code")
    shutil.rmtree(target / ".dvc")
    untouched = listing(tracked)
    lend_storage(target, tracked, target)
    assert listing(tracked) == untouched


def test_imported_data_come_from_where_they_were_imported(tracked: Path, tmp_path: Path) -> None:
    """`dvc push` leaves imports out, so no remote of the project has them."""
    from dvc.repo import Repo

    mine = tmp_path / "mine"
    mine.mkdir()
    git(mine, "init", "-q")
    with Repo.init(str(mine)) as repository:
        repository.imp(str(tracked), "data/imgs", out=str(mine / "imgs"))
    inputs = capture(mine, ["imgs", "imgs/deep/a.txt"])
    assert [item.obstacle for item in inputs] == [None, None]
    assert inputs[0].outs[0].imported is not None
    assert len(inputs[0].outs[0].imported["rev"]) == 40
    before = bytes_of(mine, ["imgs"])
    target = work_tree(mine, tmp_path / "w")
    shutil.rmtree(target / "imgs", ignore_errors=True)
    shutil.rmtree(mine / "imgs")
    shutil.rmtree(mine / ".dvc/cache")
    assert [item.source for item in restore(target, inputs[1:], mine)] == ["import"]
    assert [item.source for item in restore(target, inputs[:1], mine)] == ["import"]
    assert bytes_of(target, ["imgs"]) == before


@pytest.mark.parametrize("place", ["data/corpus", None, "../elsewhere", "s3://bucket/corpus"])
def test_a_list_finds_in_a_restored_tree_what_lies_in_the_project(place: str | None, tmp_path: Path) -> None:
    """The list alone is recorded."""
    project, target = tmp_path / "project", tmp_path / "tree"
    (project / "data/corpus/a").mkdir(parents=True)
    (project / "data/corpus/a/1.jsonl").write_text("1\n")
    (project / "data/corpus/beside.txt").touch()
    listed = "data/corpus/files.json" if place is None else "lists/corpus.json"
    made = index(str(project / "data/corpus"), "jsonl", {})
    (target / listed).parent.mkdir(parents=True)
    (target / listed).write_bytes(replace(made, place=place).written())
    item = Input(listed, "0" * 32, 1, 1, lists=(1, 2))
    for _ in range(2):
        lend_listed(target, [item], project, target)
    is_lent = place in ("data/corpus", None)
    assert (target / "data/corpus/a/1.jsonl").exists() == is_lent
    assert not (target / "data/corpus/beside.txt").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["project", "tree"]
