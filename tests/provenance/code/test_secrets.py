"""Names of files that are typical of secrets, and of files that only look like them."""

from __future__ import annotations

from orchestrator.provenance.code.secrets import note, suspicious

SECRET = [
    *(".env", "sub/.env", ".env.local", "server.pem", "deep/tls.KEY", "id_rsa", "id_ed25519", "credentials"),
    *("credentials.json", ".netrc", ".pypirc", "client_secret_1.json", "store.p12"),
]
PLAIN = [
    *(".env.example", ".env.template", "env.py", "id_rsa.pub", "keys.py", "credentials.py.sample", "monkey", "a.pub"),
    *("study.py", "key", "secrets.md", "turkey.csv"),
]


def test_what_looks_like_a_secret_is_named() -> None:
    assert suspicious([*SECRET, *PLAIN]) == SECRET


def test_nothing_is_said_of_nothing() -> None:
    assert note(PLAIN) is None


def test_the_note_names_a_few_and_gives_the_remedy() -> None:
    told = note(SECRET)
    assert told is not None
    assert told.startswith(f".env, sub/.env, .env.local and {len(SECRET) - 3} more: untracked")
    assert told.endswith("list it in .gitignore")
