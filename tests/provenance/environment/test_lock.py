"""The sources of a rebuilt environment follow from its record, and what cannot be rebuilt is refused by name."""

from __future__ import annotations

import copy
import json
import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.pylock import Pylock

from orchestrator.errors import NotRerunnable
from orchestrator.provenance.environment import lock
from tests.refusals import refused

NODE: dict[str, Any] = {
    "bits": {
        "python": "3.11.7 (main) [GCC]",
        "implementation": "CPython",
        "machine": "x86_64",
        "orchestrator": "0a" * 32,
    },
    "packages": {"numpy": "2.4.6", "torch": "2.13.0+cpu", "orchestrator": "0.1.0"},
    "builds": {"numpy": {"sha256": "ab" * 32}, "torch": {"sha256": "cd" * 32}, "orchestrator": {"editable": True}},
    "origins": {"orchestrator": {"directory": "/elsewhere", "editable": True}},
}
FIND = {"download_info": {"url": "file:///wheels/torch-2.13.0%2Bcpu-cp311-cp311-linux_x86_64.whl"}}
REPORT: dict[str, Any] = {
    "install": [
        {
            "metadata": {"name": "torch", "version": "2.13.0+cpu"},
            "download_info": {**FIND["download_info"], "archive_info": {"hashes": {"sha256": "11" * 32}}},
            "is_direct": False,
        },
        {
            "metadata": {"name": "Antlr4_Runtime", "version": "4.9"},
            "download_info": {
                "url": "https://me:word@host/antlr4-runtime-4.9.tar.gz",
                "archive_info": {"hashes": {"sha256": "22" * 32}},
            },
            "is_direct": False,
        },
        {
            "metadata": {"name": "tool", "version": "1"},
            "download_info": {
                "url": "https://host/tool",
                "vcs_info": {"vcs": "git", "commit_id": "33" * 20},
                "subdirectory": "x",
            },
            "is_direct": True,
        },
        {
            "metadata": {"name": "sent", "version": "2"},
            "download_info": {
                "url": "https://host/sent-2-py3-none-any.whl",
                "archive_info": {"hashes": {"sha256": "44" * 32}},
            },
            "is_direct": True,
        },
    ]
}


def node(**origins: Any) -> dict[str, Any]:
    """The node with further packages of version 1, each from its origin."""
    found = copy.deepcopy(NODE)
    for name, origin in origins.items():
        found["packages"][name] = "1"
        found["origins"][name] = origin
        if origin.get("editable"):
            found["builds"][name] = {"editable": True, "location": origin["directory"]}
    return found


def test_versions_are_exact_and_this_package_stands_apart() -> None:
    found = lock.of([NODE])
    assert [each.requirement for each in found.pinned] == ["numpy==2.4.6", "torch==2.13.0+cpu"]
    assert found.local == ()
    assert found.own == lock.Own("0.1.0", "0a" * 32, None, False)
    assert lock.requirements(found) == ["numpy==2.4.6\ntorch==2.13.0+cpu\n"]


def test_an_origin_is_asked_for_again() -> None:
    """A commit, a file of a web server with its hash, a file that was on that machine: of it the hash is left."""
    commit = {"url": "https://host/a", "vcs": "git", "commit": "c" * 40, "subdirectory": "python"}
    web = {"url": "https://host/b-1-py3-none-any.whl", "sha256": "b" * 64}
    local = {"url": "file:///home/me/c-1-py3-none-any.whl", "sha256": "c" * 64}
    found = {each.name: each.requirement for each in lock.of([node(a=commit, b=web, c=local)]).pinned}
    assert found["a"] == f"a @ git+https://host/a@{'c' * 40}#subdirectory=python"
    assert found["b"] == f"b @ https://host/b-1-py3-none-any.whl --hash=sha256:{'b' * 64}"
    assert found["c"] == f"c==1 --hash=sha256:{'c' * 64}"
    hashed, others = lock.requirements(lock.of([node(a=commit, b=web, c=local)]))
    assert [line.split()[0] for line in hashed.splitlines()] == ["b", "c==1"]
    assert "--hash" not in others


def test_what_lies_in_the_repository_comes_from_its_code() -> None:
    inside = node(a={"directory": "/top/libs/a", "editable": True}, b={"directory": "/top"})
    placed = lock.placed(inside, "/top")
    assert lock.of([placed]).local == (lock.Local("a", "1", "libs/a", True), lock.Local("b", "1", ".", False))
    assert lock.of([lock.placed(NODE, "/elsewhere")]).own.path == "."
    assert inside["origins"]["a"] == {"directory": "/top/libs/a", "editable": True}


def test_a_folder_outside_of_the_repository_is_refused_by_name() -> None:
    outside = node(a={"directory": "/topmost/a", "editable": True}, b={"directory": "/src/b"})
    older = node()
    older["packages"]["c"], older["builds"]["c"] = "1", {"editable": True, "location": "/src/c"}
    del older["origins"]
    with pytest.raises(NotRerunnable) as error:
        lock.of([lock.placed(outside, "/top")])
    assert "a 1: it was installed from /topmost/a, which the record does not hold" in error.value.message
    assert "b 1: it was installed from /src/b" in error.value.message
    assert "environment=check" in error.value.remedy
    with refused("environment.not-rebuilt"):
        lock.of([older])


@pytest.mark.parametrize(
    ("name", "version"),
    [("--index-url=http://x", "1"), ("a @ http://x", "1"), ("a", "1 --pre"), ("", "1"), ("a", "1\nb")],
)
def test_nothing_but_names_and_versions_reaches_pip(name: str, version: str) -> None:
    with refused("environment.not-rebuilt"):
        lock.of([{**NODE, "packages": {name: version}}])


@pytest.mark.parametrize(
    "origin",
    [
        {"url": "https://host.invalid/a\n--index-url https://evil.invalid", "commit": "c" * 40},
        {"url": "https://host.invalid/a --pre", "commit": "c" * 40},
        {"url": "ext::sh -c id", "commit": "c" * 40},
        {"url": "-e .", "commit": "c" * 40},
        {"url": "https://host.invalid/a", "commit": "c\n-e /home/victim/code"},
        {"url": "https://host.invalid/a", "commit": "--upload-pack=id"},
        {"url": "https://host.invalid/a", "vcs": "git+file:///home/victim/code ", "commit": "c" * 40},
        {"url": "https://host.invalid/a", "commit": "c" * 40, "subdirectory": "x\n--find-links /tmp/evil"},
        {"url": "https://host.invalid/a", "commit": "c" * 40, "subdirectory": "../../outside"},
        {"url": "https://host.invalid/a.whl\n--trusted-host evil.invalid"},
        {"url": "https://host.invalid/a.whl ; python_version > '3'"},
        {"url": "https://host.invalid/a.whl", "sha256": "0 --pre"},
        {"path": "/home/victim/code", "editable": True},
        {"path": "../../outside", "editable": True},
        {"path": "x/../../outside"},
    ],
)
def test_no_origin_of_a_record_reaches_pip_as_anything_else(origin: dict[str, Any]) -> None:
    """A line of its own, an option, a marker, or a place on this machine."""
    with refused("environment.not-rebuilt"):
        lock.of([{**NODE, "packages": {"a": "1"}, "origins": {"a": origin}}])


def test_the_own_package_comes_from_inside_of_the_code_too() -> None:
    with refused("environment.not-rebuilt"):
        lock.of([{**NODE, "packages": {"orchestrator": "1"}, "origins": {"orchestrator": {"path": "/home/victim"}}}])


def test_nodes_with_other_packages_are_refused() -> None:
    other = {**NODE, "packages": {**NODE["packages"], "numpy": "2.4.5"}}
    assert lock.of([NODE, NODE]) == lock.of([NODE])
    with refused("environment.several"):
        lock.of([NODE, other])


def test_the_lock_is_one_and_a_record_with_it_is_rebuilt_by_hash() -> None:
    text = lock.pylock([REPORT], "3.11.7")
    parsed = Pylock.from_dict(tomllib.loads(text))
    assert [str(each.name) for each in parsed.packages] == ["antlr4-runtime", "sent", "tool", "torch"]
    assert "word" not in text
    (wheel,) = parsed.packages[-1].wheels or []
    assert wheel.filename == "torch-2.13.0+cpu-cp311-cp311-linux_x86_64.whl"
    assert lock.hashes_in(text)["antlr4-runtime", "4.9"] == ("22" * 32,)
    numpy, torch = lock.of([NODE], text).pinned
    assert torch.requirement == f"torch==2.13.0+cpu --hash=sha256:{'11' * 32}"
    assert numpy.sha256 == ()
    assert lock.pylock([], "3.11.7") == lock.pylock([{}], "3.11.7")


@pytest.mark.parametrize("text", ["=", "packages = 1", '[[packages]]\nname = "a"\nwheels = [{}]\n', "packages = [1]"])
def test_what_is_no_lock_is_refused(text: str) -> None:
    with refused("environment.lock"):
        lock.hashes_in(text)


def test_the_key_names_what_pip_installs_and_nothing_else() -> None:
    def key(**changes: Any) -> str:
        return lock.of([{**NODE, **changes}]).key("3.11.7")

    one = key()
    assert one != lock.of([NODE]).key("3.11.8")
    assert one != key(packages={**NODE["packages"], "numpy": "2.4.5"})
    assert one != key(builds={**NODE["builds"], "numpy": {"sha256": "ff" * 32}})
    assert one == key(packages={**NODE["packages"], "orchestrator": "0.2.0"})
    assert one == lock.of([NODE], lock.pylock([REPORT], "3.11.7")).key("3.11.7")
    moved = {"a": {"directory": "/top/a", "editable": True}}
    assert one == lock.of([lock.placed(node(**moved), "/top")]).key("3.11.7")


def test_other_builds_are_named() -> None:
    found = lock.of([NODE])
    assert lock.other_builds(found, NODE["builds"]) == []
    assert lock.other_builds(found, {**NODE["builds"], "torch": {"sha256": "ee" * 32}}) == ["torch"]
    assert lock.other_builds(found, {}) == ["numpy", "torch"]


@given(st.text(max_size=20))
def test_any_text_is_a_string_of_the_lock(text: str) -> None:
    told = text.encode("utf-8", "replace").decode()
    assert tomllib.loads(f"a = {lock._toml(told)}") == {"a": told}
    assert json.loads(lock._toml(told)) == told
