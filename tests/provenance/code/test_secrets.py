"""Names of files that are typical of secrets, and of files that only look like them."""

from __future__ import annotations

from pathlib import Path

from orchestrator.provenance.code.secrets import is_suspicious, note, note_of_contents
from orchestrator.provenance.code.worktree import examine
from tests.provenance.code.repositories import commit, create, write

SECRET = [
    *(".env", "sub/.env", ".env.local", "server.pem", "deep/tls.KEY", "id_rsa", "id_ed25519", "credentials"),
    *("credentials.json", ".netrc", ".pypirc", "client_secret_1.json", "store.p12"),
]
PLAIN = [
    *(".env.example", ".env.template", "env.py", "id_rsa.pub", "keys.py", "credentials.py.sample", "monkey", "a.pub"),
    *("study.py", "key", "secrets.md", "turkey.csv"),
]


def test_what_looks_like_a_secret_is_named() -> None:
    assert [path for path in [*SECRET, *PLAIN] if is_suspicious(path)] == SECRET


def test_nothing_is_said_of_nothing(tmp_path: Path) -> None:
    assert note([]) is None
    write(tmp_path, {"study.py": "token = os.environ['TOKEN']\n"})
    assert note_of_contents(tmp_path, ["study.py", "nothing.py"]) is None


def test_the_note_names_a_few_and_gives_the_remedy() -> None:
    told = note(SECRET)
    assert told is not None
    assert told.startswith(f".env, sub/.env, .env.local and {len(SECRET) - 3} more: left out of the record")
    assert "list them in .gitignore, or git add" in told


def test_untracked_secrets_are_left_out_and_tracked_files_stay(tmp_path: Path) -> None:
    root = create(tmp_path / "project", {"study.py": "1\n", "tracked.key": "public on purpose\n"})
    clean = examine(root).tree
    write(root, dict.fromkeys(SECRET, "secret\n"))
    work = examine(root)
    assert work.left_out == tuple(sorted(SECRET))
    assert (work.tree, work.untracked, work.dirty) == (clean, (), False)
    assert b"tracked.key" in work.entries
    commit(root)
    assert examine(root).left_out == ()
    assert b".env" in examine(root).entries


def test_a_credential_in_a_text_is_pointed_out_with_its_line(tmp_path: Path) -> None:
    write(tmp_path, {"a.py": "import os\nTOKEN = 'hf_" + "a1B2" * 8 + "'\n", "b.py": "x = 1\n"})
    told = note_of_contents(tmp_path, ["a.py", "b.py"])
    assert told is not None
    assert told.startswith("a.py:2: a credential stands there")
    assert "a1B2" not in told
