"""A repository that came as a folder, with a `.git` that others have written: to look at it and to record it runs none of it.

But for filters (`filter.NAME.clean`): `git status` of a launch applies them, so that files of git LFS do not count as changed.
A launch executes the code of the project in any case.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.provenance.code import ancestry, changes, snapshot, worktree
from orchestrator.provenance.code import git as our_git
from orchestrator.provenance.code.secrets import is_suspicious
from orchestrator.provenance.data import dvc_files
from tests.provenance.code.repositories import create, git, take, write

HOOKS = """
applypatch-msg pre-applypatch post-applypatch pre-commit pre-merge-commit prepare-commit-msg commit-msg
post-commit pre-rebase post-checkout post-merge pre-push pre-receive update proc-receive post-receive
post-update reference-transaction push-to-checkout pre-auto-gc post-rewrite sendemail-validate
fsmonitor-watchman post-index-change
""".split()  # noqa: SIM905 - shorter
CONFIG = """
[core]
    fsmonitor = {trap}
    hooksPath = {hooks}
    sshCommand = {trap}
    pager = {trap}
    editor = {trap}
    askPass = {trap}
    alternateRefsCommand = {trap}
    gitProxy = {trap}
[diff]
    external = {trap}
[diff "evil"]
    command = {trap}
    textconv = {trap}
[merge "evil"]
    driver = {trap}
[gpg]
    program = {trap}
[commit]
    gpgSign = true
[log]
    showSignature = true
[credential]
    helper = !{trap}
[uploadpack]
    packObjectsHook = {trap}
[alias]
    status = !{trap}
    ls-files = !{trap}
    diff-tree = !{trap}
[remote "origin"]
    url = ext::{trap}
    promisor = true
    vcs = evil
[protocol "ext"]
    allow = always
[extensions]
    partialClone = origin
"""


@pytest.mark.slow
def test_recording_a_repository_of_others_runs_nothing_that_its_configuration_names(tmp_path: Path) -> None:
    executed, trap, hooks = tmp_path / "executed", tmp_path / "trap", tmp_path / "hooks"
    trap.write_text(f"#!/bin/sh\ntouch {executed}\ncat\n")
    hooks.mkdir()
    for each in (trap, *(hooks / name for name in HOOKS)):
        each.write_text(trap.read_text())
        each.chmod(0o755)
    root = create(tmp_path / "clone", {"a.py": "a\n", "b.txt": "b\n"})
    head = git(root, "rev-parse", "HEAD")
    snapshot.bundle(take(root, "0"), tmp_path / "before.bundle")
    with (root / ".git" / "config").open("a") as file:
        file.write(CONFIG.format(trap=trap, hooks=hooks))
    for hook in HOOKS:
        (root / ".git" / "hooks").mkdir(exist_ok=True)
        (root / ".git" / "hooks" / hook).symlink_to(trap)
    write(root, {".gitattributes": "* diff=evil merge=evil\n", "a.py": "changed\n", "new.py": "new\n"})
    taken = take(root, "1")
    snapshot.bundle(taken, tmp_path / "code.bundle")
    snapshot.patch(taken, tmp_path / "code.patch")
    assert changes.since(tmp_path / "before.bundle", worktree.examine(root)) != []
    ancestry.ancestry(root, (head, head), (tmp_path / "before.bundle", tmp_path / "code.bundle"))
    our_git.known_files(root)
    our_git.is_on_a_remote(root, head)
    dvc_files.outs(root)
    assert not executed.exists()


NAMES = """
.env .env.local .envrc .netrc .pypirc .htpasswd .git-credentials id_rsa deploy/id_ed25519 id_ecdsa_sk
.aws/credentials credentials.json client_secret_1.json server.pem a.p12 a.pfx a.jks b.key .npmrc .pgpass
.s3cfg .boto .docker/config.json .kube/config .dockercfg .my.cnf service-account.json
application_default_credentials.json terraform.tfstate .vault-token secrets.yaml secrets.toml
.streamlit/secrets.toml kaggle.json wandb/.netrc
""".split()  # noqa: SIM905 - shorter


@pytest.mark.parametrize("name", NAMES)
def test_files_where_programs_keep_secrets_are_left_out(name: str) -> None:
    assert is_suspicious(name)
    assert is_suspicious(f"deep/er/{name}")


@pytest.mark.parametrize(
    "name",
    ["config.json", "conf/config.yaml", "key.py", "keys/__init__.py", "tokenizer.json", "a_pub.key", ".env.example"],
)
def test_what_code_needs_stays(name: str) -> None:
    assert not is_suspicious(name)
