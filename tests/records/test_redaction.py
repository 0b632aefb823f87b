"""Credentials of every common shape are taken out, and what only resembles one stays."""

from __future__ import annotations

import json
import random
import string
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.records import redaction

_DRAW = random.Random(7)


def letters(number: int, alphabet: str = string.ascii_letters + string.digits) -> str:
    return "".join(_DRAW.choices(alphabet, k=number - 2)) + "a1"


SHAPES = {
    "GitHub": f"ghp_{letters(36)}",
    "GitHub, fine": f"github_pat_{letters(60)}",
    "GitLab": f"glpat-{letters(20)}",
    "Hugging Face": f"hf_{letters(34)}",
    "OpenAI": f"sk-proj-{letters(40)}",
    "Anthropic": f"sk-ant-api03-{letters(60)}",
    "AWS": f"AKIA{letters(14, string.ascii_uppercase)[:-2]}QRST",
    "Google": f"AIza{letters(35)}",
    "Slack": f"xoxb-{letters(30)}",
    "PyPI": f"pypi-{letters(60)}",
    "npm": f"npm_{letters(36)}",
    "Vault": f"hvs.{letters(24)}",
    "Telegram": f"123456789:AA{letters(33)}",
    "Stripe": f"sk_live_{letters(24)}",
    "token of JSON": f"eyJ{letters(20)}.eyJ{letters(30)}.{letters(40)}",
    "private key": f"-----BEGIN PRIVATE KEY-----\n{letters(64)}\n-----END PRIVATE KEY-----",
    "header": f"Bearer {letters(30)}",
    "name and password": f"Basic {letters(12)}",
}
KEYS = {
    "pipeline.args.password": "swordfish",
    "pipeline.args.db_passwd": "swordfish",
    "pipeline.args.apiKey": "abc",
    "pipeline.args.api_key": "abc",
    "pipeline.args.client_secret": "s",
    "pipeline.args.AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    "pipeline.args.token": "0123456789abcdef0123",
    "pipeline.args.hub.auth_token": "0123456789abcdef0123",
}
VARIABLES = {
    "PGPASSWORD": "hunter2",
    "SMTP_PASS": "hunter2",
    "SSHPASS": "hunter2",
    "DBPASS": "hunter2",
    "KAGGLE_KEY": letters(32),
    "GH_PAT": letters(20),
    "AWS_SESSION_TOKEN": f"{letters(20)}/{letters(30)}+{letters(20)}==",
}
PLAIN_VARIABLES = {
    "SORT_KEY": "name",
    "COMPASS": "north",
    "KEY": "package.module:Name12345",
    "TOKEN": "data/tokens-2024/of_the_first_corpus/train.bin",
    "AUTH": "Data/Tokens/openwebtext/gpt2/train/shard0001x",
    "BEARER": "/Data/OfTheFirstCorpus/WithAllOfItsTokens/part1",
}
ADDRESSES = {
    "https://me:swordfish@host/path?x=1": "https://host/path?x=1",
    "postgresql://me:sword@host:5432/db": "postgresql://host:5432/db",
    "https://swordfish@host": "https://host",
    "https://me:sword@fish@host/path@2": "https://host/path@2",
    "https://host/a?sig=swordfish&x=1": f"https://host/a?sig={redaction.REDACTED}&x=1",
    "https://host/a?X-Amz-Signature=swordfish": f"https://host/a?X-Amz-Signature={redaction.REDACTED}",
    "https://host/a?x=1&access_token=swordfish": f"https://host/a?x=1&access_token={redaction.REDACTED}",
}
PLAIN: dict[str, Any] = {
    "pipeline.args.tokenizer": "bpe",
    "pipeline.args.pad_token": "<|endoftext|>",
    "pipeline.args.token": "char",
    "pipeline.args.max_tokens": 128,
    "pipeline.args.tokens": ["a", "b"],
    "pipeline.args.sort_key": "package.module:Name12345",
    "pipeline.args.monkey": "a1b2c3d4e5f6g7h8i9",
    "pipeline.args.author": "somebody with a name",
    "pipeline.args.password": "",
    "pipeline.args.title": "Basic classification, then Basic Configuration; Bearer authentication.",
    "pipeline.target": "pipelines.digits:Digits",
    "run.name": "sk-1",
    "checkpoint.uri": "s3://bucket/path@2",
    "data.inputs": ["data/digits", "user@host"],
    "tracking.uri": "http://host:5000",
}


@pytest.mark.parametrize("kind", SHAPES)
def test_a_known_shape_is_taken_out_of_any_text(kind: str) -> None:
    secret = SHAPES[kind]
    for text in (secret, f"a = '{secret}'", f"it said {secret}, and ended"):
        masked = redaction.text(text)
        assert redaction.REDACTED in masked
        assert secret.removeprefix("Bearer ").removeprefix("Basic ") not in masked
    assert redaction.setting("pipeline.args.harmless", [secret]) == [redaction.text(secret)]


@pytest.mark.parametrize("key", KEYS)
def test_a_telling_key_is_enough(key: str) -> None:
    assert redaction.setting(key, KEYS[key]) == redaction.REDACTED
    assert redaction.Redactor({}, {}).arguments([f"{key}={KEYS[key]}"]) == [f"{key}={redaction.REDACTED}"]
    section, _, last = key.rpartition(".")
    assert redaction.setting(section, {last: KEYS[key], "x": 1}) == {last: redaction.REDACTED, "x": 1}


@pytest.mark.parametrize("name", VARIABLES)
def test_a_telling_name_of_a_variable_is_enough(name: str) -> None:
    assert redaction.setting(name, VARIABLES[name]) == redaction.REDACTED


@pytest.mark.parametrize("name", PLAIN_VARIABLES)
def test_a_variable_that_only_resembles_a_credential_stays(name: str) -> None:
    assert redaction.setting(name, PLAIN_VARIABLES[name]) == PLAIN_VARIABLES[name]


@pytest.mark.parametrize("address", ADDRESSES)
def test_an_address_stays_one(address: str) -> None:
    assert redaction.text(address) == ADDRESSES[address]
    assert redaction.setting("tracking.uri", address) == ADDRESSES[address]


@pytest.mark.parametrize("key", PLAIN)
def test_what_only_resembles_a_credential_stays(key: str) -> None:
    assert redaction.setting(key, PLAIN[key]) == PLAIN[key]
    assert redaction.Redactor({}, {}).hidden({key: PLAIN[key]}) == {}


def test_a_known_value_is_taken_out_of_messages() -> None:
    masker = redaction.Redactor(
        {"pipeline.args.password": "sword fish"}, {"HUB_TOKEN": "0123456789abcdef", "PATH": "/usr/bin"}
    )
    assert masker.text("no 'sword fish' and no 0123456789abcdef in /usr/bin") == "no '***' and no *** in /usr/bin"


FORMS: dict[str, Callable[[str], str]] = {
    "Python": repr,
    "beside another quote": lambda value: repr(f"it's {value}"),
    "beside both quotes": lambda value: repr(f'it\'s "{value}"'),
    "bytes": lambda value: repr(value.encode()),
    "JSON": json.dumps,
    "JSON beyond ASCII": lambda value: json.dumps(value, ensure_ascii=False),
    "path of an address": quote,
    "query of an address": quote_plus,
}


@pytest.mark.parametrize("form", FORMS)
def test_a_known_value_is_taken_out_of_messages_that_quote_it(form: str) -> None:
    """A KeyError and a client's refusal show a value as Python writes it, and an answer as JSON or in an address."""
    password = 'a "sword\\fish"\t€/é'
    shown = FORMS[form](password)
    masked = redaction.Redactor({}, {"DB_PASSWORD": password}).text(f"refused: {shown}")
    assert redaction.REDACTED in masked
    assert "fish" not in masked


def test_a_quoted_value_in_a_setting_is_not_read_again_as_it_is() -> None:
    """A rerun would put the value itself in its place."""
    masker = redaction.Redactor({}, {"DB_PASSWORD": "sword/fish"})
    assert masker.setting("pipeline.args.place", "x=sword%2Ffish") == "x=***"


LOGIN = "of me:{}@db, not of {}"


def test_a_known_value_is_taken_out_of_any_setting_and_its_variable_named() -> None:
    masker = redaction.Redactor(
        {"pipeline.args.password": "sword fish"}, {"DB_PASSWORD": "hunter2hunter2", "HOME": "/me"}
    )
    given = {"login": [LOGIN.format("hunter2hunter2", "sword fish"), 1], "home": "/me", "password": "hunter2hunter2"}
    held = {"login": [LOGIN.format("***DB_PASSWORD***", "***"), 1], "home": "/me", "password": "***DB_PASSWORD***"}
    assert masker.setting("pipeline.args", given) == held
    assert masker.setting("pipeline.args", held)["login"] == held["login"]
    assert masker.identifying("pipeline.args", given) == {
        **held,
        "login": [LOGIN.format("***", "***"), 1],
        "password": "***",
    }
    assert redaction.variables_of(held) == ["DB_PASSWORD", "DB_PASSWORD"]
    assert masker.arguments(["run.note=hunter2hunter2!", "hunter2hunter2"]) == ["run.note=***!", "***"]


def test_a_password_of_digits_is_one() -> None:
    given = {"password": 77889900, "secret_bits": 1048576, "password_length": 123456, "tokens": 12345678, "pwd": 12}
    assert redaction.setting("pipeline.args", given) == {**given, "password": redaction.REDACTED}
    assert redaction.Redactor({}, {}).setting("pipeline.args", given) == {**given, "password": redaction.REDACTED}


def test_a_short_value_in_a_typed_mapping_is_one_of_the_settings() -> None:
    masker = redaction.Redactor({"pipeline.args.db": {"password": "abc"}, "pipeline.args.hubs": [{"pwd": "1"}]}, {})
    typed = ["pipeline.args.db={user: abcd, password: abc}", 'pipeline.args.hubs=[{"pwd": "1"}]', "run.name=abc"]
    shown = ["pipeline.args.db={user: abcd, password: ***}", 'pipeline.args.hubs=[{"pwd": "***"}]', "run.name=abc"]
    assert masker.arguments(typed) == shown


def test_a_short_value_is_known_by_its_key_alone() -> None:
    masker = redaction.Redactor({}, {"PASSWORD": "ring"})
    assert masker.setting("pipeline.args", {"password": "ring", "x": "ring"}) == {
        "password": "***PASSWORD***",
        "x": "ring",
    }


def test_a_value_that_holds_another_is_taken_out_whole() -> None:
    masker = redaction.Redactor({}, {"A_PASSWORD": "PASSWORD", "B_PASSWORD": "my PASSWORD1"})
    assert masker.setting("run.note", "my PASSWORD1, PASSWORD") == "***B_PASSWORD***, ***A_PASSWORD***"


def test_a_word_between_stars_is_no_variable() -> None:
    assert redaction.variables_of({"a": "***bold*** ***TOKEN_COUNT***"}) == []
    assert redaction.with_variables("***bold***", lambda _: "x") == "***bold***"


def test_the_working_directory_is_no_password() -> None:
    assert redaction.Redactor({}, {"PWD": "/srv/project"}).text("in /srv/project/a.py") == "in /srv/project/a.py"


def test_numbers_of_json_stay() -> None:
    masker = redaction.Redactor({}, {"PASSWORD": "1234567890"})
    assert json.loads(masker.text('{"pid": 12345678901}')) == {"pid": 12345678901}


@given(st.dictionaries(st.text(max_size=10), st.text(max_size=40) | st.integers() | st.lists(st.text(max_size=10))))
def test_lines_of_json_stay_lines_of_json(values: dict[str, Any]) -> None:
    json.loads(redaction.text(json.dumps(values, ensure_ascii=False)))


@given(st.text(max_size=200))
def test_what_was_masked_stays_as_it_is(text: str) -> None:
    assert redaction.text(redaction.text(text)) == redaction.text(text)
