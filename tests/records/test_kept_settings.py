"""A record gives back a valid setting or asks for it by its key; given again, it is what the run had. The law holds for all
settings, whatever part of a value has the shape of a credential."""

from __future__ import annotations

import itertools
import typing
from dataclasses import replace
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given
from hypothesis import settings as tried
from hypothesis import strategies as st

from orchestrator.common.checked_values import Given, MismatchError, is_text, read, unwrap, without_none
from orchestrator.config.settings import Settings, from_yaml, identifying, kept, load, shown, to_dict, to_yaml
from orchestrator.config.settings.schema import KEYS, Key
from orchestrator.config.settings.sections import KeyPath
from orchestrator.errors import ConfigurationError
from orchestrator.records import redaction
from tests.products import fewer, thinned
from tests.records.test_redaction import ADDRESSES, SHAPES
from tests.records.test_redaction import KEYS as TELLING
from tests.refusals import refused

BASE: dict[str, Any] = {"run": {"steps": 40}, "pipeline": {"target": "a:B"}}
CREDENTIALS = [SHAPES["GitHub"], SHAPES["AWS"], SHAPES["npm"], "hf_" + "transformerslargemodel1"]
_MOST = 2
FORMS = (  # in which a text may hold one
    *("{}", "/home/me/{}", "~/{}/file", "{}:6379", "{}:Net", "package.{}:Net", "models:/{}@newest", "models:/{}/1"),
    *("runs:/abc0/{}", "s3://{}@host/bucket", "https://host/a?token={}", "{}@newest", "of {} and more", "${{{}}}"),
)


def texts(key: Key) -> list[str]:
    """Some of the forms, with a credential each, that this key takes."""
    found = []
    for text in (
        form.format(credential) for form, credential in zip(FORMS, itertools.cycle(CREDENTIALS), strict=False)
    ):
        try:
            read(key.kind, Given(text, text))
        except MismatchError:
            continue
        found.append(text)
    return found[:: 1 + len(found) // _MOST]


TEXTS = [key for key in KEYS if is_text(key.kind) and texts(key)]
LISTS = [key for key in KEYS if typing.get_origin(without_none(unwrap(key.kind)[0])) is tuple]
OPEN = [key for key in KEYS if key.is_open and key.name not in ("pipeline.args", "data.mixture")]


def recorded(folder: Path, settings: Settings) -> Path:
    file = folder / "settings.yaml"
    file.write_text(to_yaml(settings, public=True), encoding="utf-8")
    (folder / "data.json").touch()
    return file


def nested(path: KeyPath, value: Any) -> dict[str, Any]:
    for part in reversed(path):
        value = {part: value}
    return typing.cast("dict[str, Any]", value)


def check(folder: Path, settings: Settings) -> None:
    """The law."""
    file = recorded(folder, settings)
    assert isinstance(kept.as_held(file), Settings)
    asked, again = kept.left_out(file), kept.restored(file, settings)
    if asked:
        with pytest.raises(ConfigurationError) as caught:
            kept.given_again(file, [])
        assert [problem.split(": ")[0] for problem in caught.value.problems] == [".".join(path) for path in asked]
        assert caught.value.remedy.count("=VALUE") + caught.value.remedy.count(": VALUE") == len(asked)
    assert kept.given_again(file, [*again, "cluster.workers=1"]) == again
    back = load([str(file)], again)
    assert yaml.safe_load(to_yaml(back, public=True)) == yaml.safe_load(to_yaml(settings, public=True))
    for path in asked:
        assert reduce(getitem, path, to_dict(back)) == reduce(getitem, path, to_dict(settings))


def test_the_law_is_about_most_texts() -> None:
    assert {"privacy.secret", "pipeline.target", "run.name", "cluster.address", "initial.name", "checkpoint.uri"} <= {
        key.name for key in TEXTS
    }
    assert {"tracking.uri", "tracking.register", "topology.name", "optimizer.name"} <= {key.name for key in TEXTS}
    assert [key.name for key in LISTS if key.name == "data.inputs"]


@pytest.mark.slow
@pytest.mark.parametrize("key", thinned(TEXTS, 10), ids=lambda key: key.name)
def test_a_text_with_a_credential_is_valid_or_asked_for(key: Key, tmp_path: Path) -> None:
    for text in texts(key):
        try:
            settings = load([BASE, nested(key.path, text.replace("${", "\\${"))], [], folder=tmp_path)
        except ConfigurationError:
            continue  # it does not go with the rest of these settings
        check(tmp_path, settings)


NEEDED: dict[str, dict[str, Any]] = {  # by what else it has an effect
    "local.optimizer": {"local": {"steps": 2}},
    "cluster.pipeline": {"cluster": {"stages": 2, "workers": 2}},
}


@pytest.mark.slow
@pytest.mark.parametrize("key", thinned(OPEN, 4), ids=lambda key: key.name)
@pytest.mark.parametrize("option", thinned(["token", "password", "a.b"], 3))
def test_an_option_of_the_users_own_is_asked_for(key: Key, option: str, tmp_path: Path) -> None:
    below = {"name": "mine:One", option: SHAPES["GitHub"]} if key.is_flat else {option: SHAPES["GitHub"]}
    check(tmp_path, load([BASE, NEEDED.get(key.name, {}), nested(key.path, below)], []))


CREDENTIAL = st.sampled_from([*CREDENTIALS, *ADDRESSES, *TELLING.values(), "swordfish ${run.seed}", "***", "plain"])
NAMES = st.sampled_from(["password", "token", "apiKey", "a.password", "x", "hub"])
VALUES = st.recursive(
    CREDENTIAL | st.integers() | st.none(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner, max_size=2),
    max_leaves=6,
)


@pytest.mark.slow
@tried(fewer(3), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(NAMES, VALUES, max_size=3))
def test_arguments_of_the_pipeline_are_whole_or_asked_for(tmp_path: Path, args: dict[str, Any]) -> None:
    settings = from_yaml(to_yaml(load([BASE], [])))
    check(tmp_path, replace(settings, pipeline=replace(settings.pipeline, args=args)))


SECRET = "hunter2 hunter2"
HARMLESS = {"run": {"steps": 40, "note": "mine: ${oc.env:DB_PASSWORD}", "tags": ["a=${oc.env:DB_PASSWORD}"]}}
LOGINS = {"login": "me:${oc.env:DB_PASSWORD}@db of \\${run.seed}", "a.b": [{"x": "${oc.env:DB_PASSWORD}"}]}


@pytest.fixture
def with_variable(monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("DB_PASSWORD", SECRET)
    return load([BASE, HARMLESS, {"pipeline": {"target": "a:B", "args": LOGINS}}], [])


def test_what_came_from_a_telling_variable_is_read_there_again(with_variable: Settings, tmp_path: Path) -> None:
    file = recorded(tmp_path, with_variable)
    assert SECRET not in file.read_text()
    assert with_variable.pipeline.args["login"] == f"me:{SECRET}@db of ${{run.seed}}"
    again = kept.from_variables(file, ["cluster.workers=2"])
    assert len(again) == 4
    assert SECRET not in str(again)
    assert load([str(file)], [*kept.given_again(file, again), "cluster.workers=1"]) == with_variable
    assert kept.restored(file, with_variable) == again
    assert kept.from_variables(file, ["run.note=another"]) == [each for each in again if "run.note" not in each]


def test_an_identity_holds_neither_the_value_nor_the_variable(
    with_variable: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = identifying(with_variable)
    assert SECRET not in str(found)
    assert found["pipeline.args.login"] == "me:***@db of ${run.seed}"
    monkeypatch.delenv("DB_PASSWORD")
    monkeypatch.setenv("OTHER_PASSWORD", SECRET)
    assert identifying(with_variable) == found
    assert SECRET not in str(shown(with_variable))


def test_a_variable_that_is_not_set_is_asked_for_and_its_value_not_taken_in_plain(
    with_variable: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = recorded(tmp_path, with_variable)
    monkeypatch.delenv("DB_PASSWORD")
    assert kept.from_variables(file, []) == []
    with pytest.raises(ConfigurationError) as caught:
        kept.given_again(file, [])
    assert caught.value.remedy == "set DB_PASSWORD"
    assert "pipeline.args.login: it came from the variable DB_PASSWORD, which is not set" in caught.value.problems
    typed = ["run.note=x", "run.tags=[]", f"pipeline.args.login={SECRET}", "pipeline.args={a.b: [{x: y}]}"]
    with pytest.raises(ConfigurationError) as caught:
        kept.given_again(file, typed)
    assert caught.value.codes == ("settings.masked-typed",)
    assert {problem.split(": ")[0] for problem in caught.value.problems} == {"pipeline.args.login", "pipeline.args.a.b"}


def test_the_path_of_a_secret_is_no_secret(tmp_path: Path) -> None:
    for path in ("/home/me/secret", "~/secret", f"/mnt/{SHAPES['GitHub']}/x"):
        private = {"clipping_norm": 1.0, "noise_multiplier": 1.0, "delta": 0.1, "secret": path}
        file = recorded(tmp_path, load([BASE, {"data": {"partition": "iid"}, "privacy": private}], []))
        assert kept.given_again(file, []) == []
        assert load([str(file)], []).privacy.secret == path
    assert redaction.Redactor({}, {}).arguments([f"privacy.secret={path}"]) == [f"privacy.secret={path}"]
    assert redaction.Redactor({"privacy.secret": "/home/me/keys"}, {}).text("no /home/me/keys") == "no /home/me/keys"


def test_a_record_that_lacks_the_path_asks_for_it(tmp_path: Path) -> None:
    """Earlier versions took it for a credential, which no later load could read."""
    private = {"clipping_norm": 1.0, "noise_multiplier": 1.0, "delta": 0.1, "secret": "/home/me/secret"}
    file = recorded(tmp_path, load([BASE, {"data": {"partition": "iid"}, "privacy": private}], []))
    file.write_text(file.read_text().replace("secret: /home/me/secret", "secret: '***'"))
    assert kept.as_held(file).privacy.secret is None
    with pytest.raises(ConfigurationError) as caught:
        kept.given_again(file, ["cluster.workers=2"])
    assert caught.value.problems == ("privacy.secret: this record lacks the path",)
    assert caught.value.remedy == "give it again: privacy.secret=PATH"
    again = kept.given_again(file, ["cluster.workers=2", "privacy.secret=/elsewhere"])
    assert again == ["privacy.secret=/elsewhere"]
    assert load([str(file)], again).privacy.secret == "/elsewhere"


def test_all_that_is_wanting_is_asked_for_at_once(tmp_path: Path) -> None:
    args = {"password": "swordfish", "a.token": SHAPES["GitHub"], "hubs": [{"secret": "x"}]}
    file = recorded(tmp_path, load([BASE, {"pipeline": {"target": "a:B", "args": args}}], []))
    with pytest.raises(ConfigurationError) as caught:
        kept.given_again(file, [])
    assert len(caught.value.problems) == 3
    assert caught.value.remedy == (
        "give them again: pipeline.args.password=VALUE 'pipeline.args={a.token: VALUE}' pipeline.args.hubs=VALUE"
    )
    with refused("settings.masked-needed", "pipeline.args.hubs"):
        kept.given_again(file, ["pipeline.args.password=x", "pipeline.args={a.token: y}"])
