"""Credentials kept out of a record: in settings by key or shape, in any text by shape or as a known value. Pure.

An address loses its name and password, and is still the address. Another value becomes MASK, and the record says by its key
that it was there. A known value of a variable becomes the variable's name between two MASKs, so that it can be read there
again. A credential is not found if it has no known shape, stands under no telling key and is the value of no telling
variable: a password in a file's text cannot be told from a word. Source of the shapes: the prefixes that their issuers
publish for such scans (GitHub, GitLab, Hugging Face, OpenAI, Anthropic, AWS, Google, Slack, PyPI, npm, SendGrid, Stripe,
Vault, Telegram, DigitalOcean). RFC 7519, section 3, has those of JSON Web Tokens, and RFC 7468 those of keys.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from urllib.parse import quote, quote_plus

from orchestrator.errors import without_users

REDACTED = "***"
_SHAPES = re.compile(
    r"(?<![A-Za-z0-9])(?:"
    r"gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}|glpat-[A-Za-z0-9_-]{16,}|hf_[A-Za-z0-9]{20,}"
    r"|sk-[A-Za-z0-9_-]{20,}|(?:sk|rk)_(?:live|test)_[A-Za-z0-9]{16,}|(?:AKIA|ASIA)[A-Z0-9]{16}"
    r"|AIza[A-Za-z0-9_-]{35}|ya29\.[A-Za-z0-9_-]{20,}|xox[abeoprs]-[A-Za-z0-9-]{10,}|pypi-[A-Za-z0-9_-]{30,}"
    r"|hv[sbr]\.[A-Za-z0-9_-]{20,}|[0-9]{8,10}:AA[A-Za-z0-9_-]{33}"
    r"|npm_[A-Za-z0-9]{30,}|SG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}|do[opr]_v1_[a-f0-9]{40,}"
    r"|eyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}"
    r")"
)
_PRIVATE_KEY = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL)
_PARAMETER = re.compile(
    r"([?&;](?:[\w.-]*(?:token|secret|password|passwd|signature|credential)|sig|api_?key|access_?key|account_?key|pwd)=)"
    r"[^&;\s\"'<>]+",
    re.IGNORECASE,
)
# A word that follows, as in "Basic configuration", has neither a digit nor a capital behind a small letter.
_HEADER = re.compile(r"(\b(?:Bearer|Basic)\s+)(?=[A-Za-z+/_.~-]*(?:[0-9=]|[a-z][A-Z]))[A-Za-z0-9+/=_.~-]{12,}")
# The words of a key's name. A value under the second kind is masked only if it could be one: NLP has tokens of its own.
_CERTAIN = re.compile(
    r"(^|_)([a-z]*passw(or)?d|passphrase|pwd|secret|credentials?|api_?key|(access|private|account|signing)_?key)(_|$)"
)
_POSSIBLE = re.compile(r"(^|_)(tokens?|auth|sas|bearer|authorization)$")
# The same of variables alone: a setting of such a name is seldom one.
_CERTAIN_VARIABLE = re.compile(r"(^|_)(db|ssh)?pass(_|$)")
_POSSIBLE_VARIABLE = re.compile(r"(^|_)(key|pat|jwt)$")
# Base64 has slashes, as paths have, but few, and both capitals and small letters between them.
_BASE64 = r"(?=.*[A-Z])(?=.*[a-z])(?!/|.*(?:/[^/]{1,12}){4})[A-Za-z0-9+/]{40,}={0,2}"
_COULD_BE = re.compile(rf"(?=.*[0-9])(?=.*[A-Za-z])(?:[A-Za-z0-9+=_~-]{{16,}}|{_BASE64})")
_DIGITS = 6  # of a number that may be a password
_FOLDERS = ("PWD", "OLDPWD")  # of the shell, and no passwords
_NAMES = ("privacy.secret", "pipeline.target")  # where a secret lies, and what code is called: neither is one itself
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_NAMED = re.compile(rf"{re.escape(REDACTED)}([A-Za-z_][A-Za-z0-9_]*){re.escape(REDACTED)}")
_LIKELY = "0123456789abcdef"  # could be a credential under any key that may hold one


def text(value: str) -> str:
    """A text without what has the shape of a credential."""
    value = without_users(value)
    if "=" in value:
        value = _PARAMETER.sub(rf"\1{REDACTED}", value)
    if "PRIVATE KEY" in value:
        value = _PRIVATE_KEY.sub(REDACTED, value)
    return _HEADER.sub(rf"\1{REDACTED}", _SHAPES.sub(REDACTED, value))


def setting(key: str, value: Any) -> Any:
    """The value of a setting or a variable as a record may hold it; lists and mappings with all that is in them."""
    if isinstance(value, Mapping):
        return {name: setting(f"{key}.{name}", item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(setting(key, item) for item in value)
    if _is_secret_number(key, value):
        return REDACTED
    if not isinstance(value, str) or not value or key in _NAMES:
        return value
    return REDACTED if names_secret(key, value) else text(value)


def without_secrets(variables: Mapping[str, str]) -> dict[str, str]:
    """Those that may be shown: neither name nor value tells of a credential."""
    return {name: value for name, value in variables.items() if not names_secret(name, value)}


def names_secret(key: str, value: str) -> bool:
    """Whether a value under such a key is a credential, whatever its shape."""
    if key in _NAMES:
        return False
    last = "_".join(_WORDS.findall(key.rsplit(".", 1)[-1])).lower()
    is_variable = key.isupper()
    if _CERTAIN.search(last) or (is_variable and _CERTAIN_VARIABLE.search(last)):
        return True
    is_possible = _POSSIBLE.search(last) or (is_variable and _POSSIBLE_VARIABLE.search(last))
    return bool(is_possible and _COULD_BE.fullmatch(value))


def _is_secret_number(key: str, value: Any) -> bool:
    """Whether it is a password of digits, which YAML reads as a number, and no size of one, such as `secret_bits`."""
    if not isinstance(value, int) or len(str(value)) < _DIGITS:
        return False
    found = _CERTAIN.search("_".join(_WORDS.findall(key.rsplit(".", 1)[-1])).lower())
    return found is not None and not found[found.re.groups]


def is_redacted(value: Any) -> bool:
    """Whether something was taken out here that a rerun needs again; an address without its password is whole."""
    if isinstance(value, Mapping):
        return any(map(is_redacted, value.values()))
    if isinstance(value, list | tuple):
        return any(map(is_redacted, value))
    return isinstance(value, str) and REDACTED in value


def variables_of(value: Any) -> list[str]:
    """The variables whose values were taken out here, so far as they can be told from a word."""
    return [name for _, text in _texts("", value) for name in _NAMED.findall(text) if names_secret(name, _LIKELY)]


def with_variables(value: Any, replacement: Callable[[str], str]) -> Any:
    """The value with a replacement for each of `variables_of`, by its name."""

    def replaced(match: re.Match[str]) -> str:
        return replacement(match[1]) if names_secret(match[1], _LIKELY) else match[0]

    return over_texts(value, lambda text: _NAMED.sub(replaced, text))


class Redactor:
    """Takes known credentials out, too, under whatever key or in whatever text they stand: in messages of errors, say. values:
    of settings and variables that are credentials, and long enough not to be words."""

    def __init__(self, settings: Mapping[str, Any], variables: Mapping[str, str]) -> None:
        self._named = {
            value: name
            for name, value in sorted(variables.items(), reverse=True)
            if value and name not in _FOLDERS and names_secret(name, value)
        }
        known = {
            value for key, each in settings.items() for name, value in _texts(key, each) if names_secret(name, value)
        }
        forms = {form for value in {*known, *self._named} if _is_no_word(value) for form in _forms(value)}
        found = sorted(forms, key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, found))) if found else None
        short = sorted(value for value in known if value and not _is_no_word(value))
        self._short = re.compile(rf"(?<!\w)({'|'.join(map(re.escape, short))})(?!\w)") if short else None

    def text(self, value: str) -> str:
        return text(value if self._known is None else self._known.sub(REDACTED, value))

    def setting(self, key: str, value: Any) -> Any:
        """The value of a setting as a record may hold it; lists and mappings with all that is in them."""
        if isinstance(value, Mapping):
            return {name: self.setting(f"{key}.{name}", item) for name, item in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(self.setting(key, item) for item in value)
        if _is_secret_number(key, value):
            return REDACTED
        if not isinstance(value, str) or not value or key in _NAMES:
            return value
        if names_secret(key, value):
            return self._mark(value)
        return text(value if self._known is None else self._known.sub(lambda found: self._mark(found[0]), value))

    def identifying(self, key: str, value: Any) -> Any:
        """The same as an identity holds it: without the names of variables, which may be others elsewhere."""
        return with_variables(self.setting(key, value), lambda _: REDACTED)

    def hidden(self, values: Mapping[str, Any]) -> dict[str, str]:
        """The flat settings that a record holds otherwise: key -> what it holds."""
        return {key: str(redacted) for key, value in values.items() if (redacted := self.setting(key, value)) != value}

    def arguments(self, typed: Iterable[str]) -> list[str]:
        """A command line as a record may hold it."""
        found = []
        for argument in typed:
            key, equals, value = argument.partition("=")
            found.append(f"{key}={self._typed(key, value)}" if equals else self.text(argument))
        return found

    def _typed(self, key: str, value: str) -> str:
        """A list or a mapping is a text here, in which a short credential is told by being one of the settings."""
        if value.startswith(("{", "[")) and self._short is not None:
            value = self._short.sub(REDACTED, value)
        return str(self.identifying(key, value))

    def _mark(self, known: str) -> str:
        """The text in place of a credential."""
        name = self._named.get(known, "")
        marked = f"{REDACTED}{name}{REDACTED}"
        return marked if _NAMED.fullmatch(marked) else REDACTED


def _is_no_word(value: str) -> bool:
    """Long enough to be found in a text by chance nowhere; one of digits alone could be a number in JSON."""
    return len(value) >= 8 and any(map(str.isalpha, value))


def _forms(value: str) -> set[str]:
    """The value as it stands in texts: as it is, as Python and JSON quote it, and in an address."""
    quoted = repr(value)[1:-1]
    within = {quoted, quoted.replace("\\'", "'"), quoted.replace("\\'", "'").replace("'", "\\'")}
    in_json = {json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]}
    encoded = value.encode(errors="surrogateescape")
    addresses = {quote(encoded), quote(encoded, safe=""), quote_plus(encoded)}
    return {value, *within, *in_json, repr(encoded)[2:-1], *addresses}


def _texts(key: str, value: Any) -> list[tuple[str, str]]:
    """Every text in a value, with the key that it stands under."""
    if isinstance(value, Mapping):
        return [found for name, item in value.items() for found in _texts(f"{key}.{name}", item)]
    if isinstance(value, list | tuple):
        return [found for item in value for found in _texts(key, item)]
    return [(key, value)] if isinstance(value, str) else []


def over_texts(value: Any, change: Callable[[str], str], *, keys: bool = False) -> Any:
    """A plain value with every text changed. keys: whether those of mappings are, too."""
    if isinstance(value, Mapping):
        names = over_texts(list(value), change) if keys else value
        return dict(zip(names, (over_texts(item, change, keys=keys) for item in value.values()), strict=True))
    if isinstance(value, list | tuple):
        found = [over_texts(item, change, keys=keys) for item in value]
        return found if isinstance(value, list) else tuple(found)
    return change(value) if isinstance(value, str) else value
