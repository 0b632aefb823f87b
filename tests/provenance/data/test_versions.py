"""Hashes of inputs are DVC's own, and what DVC's files record is found."""

from __future__ import annotations

import json
import os
import resource
import shutil
from pathlib import Path

import pytest
import yaml

from orchestrator.common.tested_versions import DVC, Tried
from orchestrator.data.files import manifest
from orchestrator.data.files.manifest import File, Manifest
from orchestrator.provenance.code.worktree import examine
from orchestrator.provenance.data import dvc_files, hashing, versions
from tests.provenance.code.repositories import create, git
from tests.provenance.data.dvc_project import capture
from tests.refusals import refused

# DVC's own use of a library
pytestmark = [pytest.mark.filterwarnings("ignore:_NoneStep.value will soon raise"), pytest.mark.slow]
REPOSITORY = Path(__file__).resolve().parents[3]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "data" / "imgs" / "deep").mkdir(parents=True)
    (tmp_path / "data" / "imgs" / "b.txt").write_text("b")
    (tmp_path / "data" / "imgs" / "deep" / "a.txt").write_text("a")
    (tmp_path / "raw.csv").write_text("1,2\n")
    return tmp_path


def test_hashes_and_records_are_those_of_dvc(tracked: Path) -> None:
    """For a folder, a file, the output of a stage elsewhere, parts of a folder, and a folder above."""
    paths = ["data/imgs", "raw.csv", "made/numbers.txt", "data/imgs/deep", "data/imgs/b.txt", "data"]
    found = {item.path: item for item in capture(tracked, paths)}
    for path in paths[:5]:
        assert found[path].md5 == found[path].recorded_md5
    assert (found["data/imgs"].files, found["data/imgs"].size, found["data/imgs"].stage) == (2, 4, None)
    assert found["data/imgs"].md5.endswith(".dir")
    assert found["made/numbers.txt"].stage == "sub/dvc.yaml:count"
    assert [out.file for path in paths[:3] for out in found[path].outs] == [
        "data/imgs.dvc",
        "raw.csv.dvc",
        "sub/dvc.lock",
    ]
    assert {item.keeper for path, item in found.items() if path != "data"} == {"dvc"}
    assert (found["data"].keeper, found["data"].recorded_md5) == ("dvc and code", None)
    assert all(item.as_recorded and item.in_cache and item.obstacle is None for item in found.values())


def test_a_dvc_that_was_not_tested_is_refused_where_it_does_otherwise(
    tracked: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("dvc.data_cloud.DataCloud.get_remote_odb")
    with pytest.raises(AttributeError, match="no attribute 'get_remote_odb'"):
        dvc_files.lacking(tracked, "far", "md5", ["0" * 32])
    monkeypatch.setattr(Tried, "is_here", False)
    assert len(dvc_files.outs(tracked)) > 2  # what it does as before
    with refused("dvc.untested") as caught:
        dvc_files.lacking(tracked, "far", "md5", ["0" * 32])
    assert caught.value.remedy == f"install {DVC.wanted}"


def test_a_record_is_plain_and_comes_back(tracked: Path) -> None:
    for item in capture(tracked, ["data/imgs", "data", "loose.txt"]):
        record = json.loads(json.dumps(item.as_dict()))
        assert versions.from_dict({**record, "of a later version": 1}) == item


def test_credentials_stay_where_they_are(tracked: Path) -> None:
    with (tracked / ".dvc/config.local").open("a") as file:
        file.write("['remote \"web\"']\n    url = https://me:secret@host/store\n    password = secret\n")
    (item,) = capture(tracked, ["raw.csv"])
    assert item.remotes is not None
    assert item.remotes["web"] == "https://host/store"
    assert "secret" not in json.dumps(item.as_dict())


def test_what_is_not_there_is_said_with_the_command_that_brings_it(tracked: Path) -> None:
    """From the cache, else from the remote; where there is neither, by making it anew or asking who has it."""
    made = "make it with: dvc repro sub/dvc.yaml:count"
    assert dvc_files.how_to_have(tracked, "raw.csv") == "take it from DVC's cache with: dvc checkout raw.csv"
    shutil.rmtree(tracked / ".dvc/cache")
    assert dvc_files.how_to_have(tracked, "./raw.csv") == "fetch it with: dvc pull raw.csv"
    assert dvc_files.how_to_have(tracked, "data/imgs/deep/a.txt") == "fetch it with: dvc pull data/imgs"
    assert dvc_files.how_to_have(tracked, "made/numbers.txt") == f"fetch it with: dvc pull made/numbers.txt or {made}"
    (tracked / ".dvc/config").write_text("")
    assert dvc_files.how_to_have(tracked, "raw.csv").startswith("DVC knows it, and has neither its bytes nor a remote")
    assert dvc_files.how_to_have(tracked, "made/numbers.txt") == made
    assert dvc_files.how_to_have(tracked, "loose.txt") == ""


def test_a_part_of_which_no_manifest_tells(tracked: Path) -> None:
    """Then the whole folder is hashed, and a change beside the part counts."""
    shutil.rmtree(tracked / ".dvc/cache")
    (item,) = capture(tracked, ["data/imgs/deep"])
    assert (item.recorded_md5, item.as_recorded, item.in_cache, item.obstacle) == (None, True, False, None)
    (tracked / "data/imgs/b.txt").write_text("B")
    assert not capture(tracked, ["data/imgs/deep"])[0].as_recorded


def test_what_could_not_be_restored_is_said_with_a_remedy(tracked: Path) -> None:
    shutil.rmtree(tracked / ".dvc/cache")
    (tracked / ".dvc/config").write_text("")
    (tracked / "made/numbers.txt").write_text("124\n")
    (tracked / "data/loose.txt").write_text("l")
    found = capture(tracked, ["raw.csv", "made/numbers.txt", "loose.txt", "data", "notes.txt"])
    assert [item.obstacle for item in found] == [
        "raw.csv is not in DVC's cache, and there is no remote that could have it; dvc commit raw.csv",
        "made/numbers.txt is not what DVC has recorded; dvc repro sub/dvc.yaml:count",
        "loose.txt is not under DVC, so it cannot be restored; dvc add loose.txt",
        "data (data/loose.txt) is not under DVC, so it cannot be restored; dvc add data",
        None,
    ]
    assert [item.keeper for item in found] == ["dvc", None, None, None, "code"]


def test_of_data_outside_no_command_is_advised_that_dvc_refuses(tracked: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "x.csv").write_text("x")
    (tracked / "link").symlink_to(outside)
    (tracked / "sub" / "y.csv").symlink_to(outside / "x.csv")  # DVC takes what a link leads to
    (tracked / ".gitignore").write_text("y.csv\n")
    paths = ["../outside/x.csv", str(outside / "x.csv"), "link/x.csv", "link", "sub/y.csv"]
    told = [str(item.obstacle) for item in capture(tracked, paths)]
    assert told[:4] == [
        f"{path} lies outside of the project, so it cannot be restored; dvc add a copy within the project"
        for path in paths[:4]
    ]
    assert told[4].endswith("dvc add sub/y.csv")


def test_a_change_that_dvc_status_overlooks_is_an_obstacle(tracked: Path) -> None:
    file = tracked / "raw.csv"
    stat = file.stat()
    file.write_text("1,3\n")
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    (item,) = capture(tracked, ["raw.csv"])
    assert not item.as_recorded
    assert item.obstacle == "raw.csv is not what DVC has recorded; dvc commit raw.csv"


def test_files_that_dvc_ignores_are_counted(tracked: Path) -> None:
    (before,) = capture(tracked, ["data/imgs"])
    (tracked / "data/imgs/.dvcignore").write_text("*.tmp\n")
    (tracked / "data/imgs/deep/x.tmp").write_text("x")
    (item,) = capture(tracked, ["data/imgs"])
    assert item.ignored == 1
    assert item.md5 != before.md5  # .dvcignore itself is data
    (tracked / "data/imgs/.dvcignore").unlink()
    (tracked / ".dvcignore").write_text("# mine\n*.tmp\n")
    (item,) = capture(tracked, ["data/imgs"])
    assert (item.md5, item.ignored, item.as_recorded) == (before.md5, 1, True)
    assert item.obstacle == "data/imgs holds 1 files that .dvcignore leaves out: they are not recorded; add them"


def test_rules_that_dvc_cannot_read_are_named(tracked: Path) -> None:
    (tracked / ".dvcignore").write_bytes("# café\n*.tmp\n".encode("latin-1"))
    with refused("dvc.ignore-file", ".dvcignore is not in UTF-8"):
        capture(tracked, ["data/imgs"])


def test_links_are_followed_and_circles_left(tmp_path: Path) -> None:
    """DVC does not look behind a link to a folder; the pipeline does."""
    (tmp_path / "real").mkdir()
    (tmp_path / "real/a").write_text("a")
    (tmp_path / "set").mkdir()
    (tmp_path / "set/link").symlink_to(tmp_path / "real")
    (tmp_path / "real/back").symlink_to(tmp_path / "set")
    (tmp_path / "set/up").symlink_to(tmp_path / "set")
    assert list(hashing.scan(tmp_path / "set").entries) == ["link/a"]


def test_outputs_that_dvc_only_hashes_are_the_codes(tracked: Path) -> None:
    """`cache: false`: the lock has the md5, git has the bytes."""
    definition = yaml.safe_load((tracked / "sub/dvc.yaml").read_text())
    definition["stages"]["count"]["outs"] = [{"made/numbers.txt": {"cache": False}}]
    (tracked / "sub/dvc.yaml").write_text(yaml.safe_dump(definition))
    (item,) = capture(tracked, ["made/numbers.txt"])
    assert (item.keeper, item.recorded_md5 == item.md5, item.in_cache) == (None, True, None)
    (tracked / ".gitignore").write_text("")
    (item,) = capture(tracked, ["made/numbers.txt"])
    assert (item.keeper, item.obstacle) == ("code", None)


def test_settings_of_dvc_that_are_broken_are_an_error(tracked: Path) -> None:
    (tracked / ".dvc/config").write_text("[core\n")
    with refused("dvc.configuration"):
        capture(tracked, ["raw.csv"])
    (tracked / ".dvc/config").write_text("[cache]\n    dir = /some/%(where)s\n")
    with refused("dvc.configuration"):
        capture(tracked, ["raw.csv"])


def test_a_place_for_temporary_files_in_which_dvc_cannot_write_is_told(tracked: Path) -> None:
    """DVC makes databases there, of more bytes than a file may have here."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with refused("dvc.no-room", "disk I/O error"):
            dvc_files.outs(tracked)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_json_that_is_no_list_of_files_is_not_read_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Annotations of 187 MB took 8.4 s and 1.5 GB of memory at each launch."""
    made = Manifest("jsonl", (File("a.jsonl", 3, 70, "0" * 32), File("b.jsonl", 1, 7, "1" * 32)))
    (tmp_path / "files.json").write_bytes(made.written())
    assert capture(tmp_path, ["files.json"])[0].lists == (2, 77)
    monkeypatch.setattr(manifest, "read", lambda *_: pytest.fail("it was read"))
    (tmp_path / "captions.json").write_text('{"images": [], "annotations": []}')
    (tmp_path / "empty.json").write_text("")
    assert [each.lists for each in capture(tmp_path, ["captions.json", "empty.json"])] == [None, None]


def test_files_that_dvc_holds_one_by_one_are_looked_up_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each file was compared with each `.dvc` file: 3000 of them held a launch up for two minutes."""
    entries = {f"{part}/{number}": "0" * 32 for part in ("own", "whole", "loose") for number in range(100)}
    outs = [dvc_files.Out(f"data/own/{number}", "0" * 32, "md5", f"data/own/{number}.dvc") for number in range(100)]
    outs.append(dvc_files.Out("data/whole", "1" * 32, "md5", "data/whole.dvc"))
    asked = []

    def is_in(path: str, folder: str) -> bool:
        asked.append(path)
        return hashing.is_in(path, folder)

    monkeypatch.setattr(versions, "is_in", is_in)
    found = versions._look_up(tmp_path, "data", hashing.Scan(entries, 300, False), outs, None)
    assert found.outs == tuple(outs)
    assert found.loose == tuple(sorted(f"data/loose/{number}" for number in range(100)))
    assert len(asked) < 10 * len(entries)


def test_data_in_a_repository_inside_are_in_the_code(tmp_path: Path) -> None:
    """A submodule, an embedded repository, and one in that: a snapshot holds their files."""
    outer = create(tmp_path / "outer", {"code.py": "1\n"})
    source = create(tmp_path / "source", {"points.csv": "1\n"})
    git(outer, "submodule", "--quiet", "add", str(source), "sub")
    for folder in (outer / "embedded", outer / "embedded" / "inner"):
        create(folder, {"points.csv": "2\n"})
    names = ["sub/points.csv", "embedded/points.csv", "embedded/inner"]
    assert [(item.keeper, item.obstacle) for item in capture(outer, names)] == [("code", None)] * 3
    assert all(
        f"{name}/points.csv".encode() in examine(outer).entries for name in ("sub", "embedded", "embedded/inner")
    )
    (outer / ".gitignore").write_text("/embedded\n")
    assert [item.keeper for item in capture(outer, names)] == ["code", None, None]
    (outer / "link").symlink_to(source)
    (item,) = capture(outer, ["link/points.csv"])
    assert item.keeper is None


def test_a_link_that_the_code_holds_is_no_copy_of_a_file_elsewhere(tmp_path: Path) -> None:
    source = create(tmp_path / "source", {"inside.csv": "1"})
    (tmp_path / "outside.csv").write_text("2")
    (source / "out.csv").symlink_to(tmp_path / "outside.csv")
    (source / "in.csv").symlink_to("inside.csv")
    git(source, "add", "--all")
    inside, outside = capture(source, ["in.csv", "out.csv"])
    assert (inside.keeper, inside.obstacle) == ("code", None)
    assert outside.keeper is None
    assert "out.csv is not under DVC, so it cannot be restored" in str(outside.obstacle)


def test_a_manifest_that_leads_out_of_its_folder_is_none(tmp_path: Path) -> None:
    place = tmp_path / "x.dir"
    for name in ("../a", "/a", "b/../../a"):
        place.write_text(json.dumps([{"relpath": name, "md5": "0" * 32}]))
        assert dvc_files.manifest(place) is None
    place.write_text("{")
    assert dvc_files.manifest(place) is None


def test_a_change_that_keeps_size_and_time_is_seen(project: Path) -> None:
    file = project / "raw.csv"
    before, stat = hashing.scan(file).md5, file.stat()
    file.write_text("1,3\n")
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert hashing.scan(file).md5 != before


def test_unknown_data_has_no_record(project: Path) -> None:
    (item,) = capture(project, ["raw.csv"])
    assert (item.recorded_md5, item.stage) == (None, None)


def test_outputs_of_stages_are_found_in_the_lock_and_in_the_pipeline(project: Path) -> None:
    (project / ".dvc").mkdir()
    lock = {"schema": "2.0", "stages": {"prepare@a": {"cmd": "x", "outs": [{"path": "data/imgs", "md5": "5.dir"}]}}}
    (project / "dvc.lock").write_text(yaml.safe_dump(lock))
    each = {"cmd": "x", "wdir": "${top}", "outs": [{"${item.path}": {"cache": False}}]}
    places = {"a": {"path": "data/imgs"}, "b": {"path": "other"}}
    stages = {
        "prepare": {"foreach": places, "do": each},
        "broken": {"cmd": "${no.such}"},
        "never": {"cmd": "x", "outs": ["raw.csv"]},
    }
    (project / "dvc.yaml").write_text(yaml.safe_dump({"vars": [{"top": "."}], "stages": stages}))
    folder, file = capture(project, ["data/imgs", "raw.csv"])
    assert (folder.recorded_md5, folder.stage, folder.outs[0].cached) == ("5.dir", "prepare@a", False)
    assert (file.recorded_md5, file.stage) == (None, "never")
    assert file.obstacle == "raw.csv is not what DVC has recorded; dvc repro never"
    assert dvc_files.how_to_have(project, "./data/imgs/") == "make it with: dvc repro prepare@a"
    assert dvc_files.how_to_have(project, "other") == "make it with: dvc repro prepare@b"
    assert dvc_files.how_to_have(project, "neither") == ""
    assert not (project / ".dvc/tmp").exists()


def test_a_hash_that_is_a_number_is_none(project: Path) -> None:
    """As YAML reads one of digits that somebody has written without quotes; DVC asks how it ends."""
    (project / ".dvc").mkdir()
    (project / "raw.csv.dvc").write_text("outs: [{path: raw.csv, hash: md5, md5: 123}]")
    (item,) = capture(project, ["raw.csv"])
    assert item.recorded_md5 is None


def test_a_missing_path_is_an_error(project: Path) -> None:
    with pytest.raises(FileNotFoundError):
        hashing.scan_input(project, "nothing")


def test_the_digits_are_made_byte_for_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pipelines import prepare_digits

    (tmp_path / ".dvc").mkdir()
    for name in ("dvc.lock", "dvc.yaml"):
        shutil.copy2(REPOSITORY / name, tmp_path)
    monkeypatch.chdir(tmp_path)
    prepare_digits.main()
    (item,) = capture(tmp_path, ["data/digits"])
    assert item.md5 == item.recorded_md5
    assert item.stage == "prepare_digits"


def test_the_lock_is_of_the_scripts_as_they_are() -> None:
    """Otherwise `dvc repro` in a fresh clone would change a committed file."""
    stages = yaml.safe_load((REPOSITORY / "dvc.lock").read_text())["stages"]
    recorded = {dep["path"]: dep["md5"] for stage in stages.values() for dep in stage.get("deps", [])}
    scripts = {path: md5 for path, md5 in recorded.items() if path.endswith(".py")}
    assert scripts == {path: hashing.scan(REPOSITORY / path).md5 for path in scripts}
    assert len(scripts) >= 2
