"""Secrets: what is one, and how it is kept out of everything that is written.

By its name (``api_key``), by its place in an address (user, password, query), or because a
variable of the environment holds it.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any, TextIO
from urllib.parse import quote, unquote, urlsplit

from custom_metrics.errors import ConfigError

MASKED = "***"
# A shorter key ("none", "EMPTY") is a placeholder, and a word that texts are full of.
LEAST_LENGTH = 8
_NO_WORD = 16

# --- names -----------------------------------------------------------------------------------

# Tokens are mostly no secrets (eos_token, max_tokens): only with one of these words before.
_OWNERS = (
    "access|anthropic|api|auth|aws|azure|bearer|bot|client|deploy|gh|github|gitlab|google|groq|hf|"
    "hub|huggingface|id|judge|jwt|mistral|oauth|openai|openrouter|personal|private|proxy|refresh|"
    "secret|security|server|service|session|subscription|together|user|vllm|wandb"
)
# A key mostly is one: but not with one of these words before (prompt_cache_key).
_PLAIN_KEYS = (
    "answer|cache|column|dict|doc|foreign|group|hash|id|input|join|json|label|lookup|metric|output|"
    "partition|primary|prompt|public|row|sort|target|text|unique"
)
_SECRET_NAME = re.compile(
    rf"(.*_)?({_OWNERS})_?(key|token)s?"
    r"|keys?|token|apikeys?"
    rf"|(?!(?:.*_)?(?:{_PLAIN_KEYS})_key$).*_key"
    r"|(.*_)?(auth|authorization|bearer|cookies?|credentials?|headers?|jwt|passphrase|passwd"
    r"|password|passwords|pwd|secrets?|sig|signature)"
)


@cache
def is_secret_name(name: str) -> bool:
    """Whether a setting of this name holds a secret: api_key, auth_token, password, header …"""
    words = re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower()
    return _SECRET_NAME.fullmatch(re.sub(r"[^a-z0-9]+", "_", words).strip("_")) is not None


# --- addresses -------------------------------------------------------------------------------

_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s\"'<>]+")
_PLAIN_PARAMETERS = ("api-version", "api_version", "revision", "version")


def mask_addresses(text: str) -> str:
    """``text`` with user, password and query of every address in it masked."""
    return _ADDRESS.sub(lambda match: _mask_address(match[0]), text) if "://" in text else text


def _mask_address(address: str) -> str:
    scheme, _, rest = address.partition("://")
    before, mark, query = rest.partition("?")
    if _has_user(f"{scheme}://{before}"):
        before = f"{MASKED}@{before.rpartition('@')[2]}"
    if mark:
        query = "&".join(_mask_parameter(part) for part in query.split("&"))
    return f"{scheme}://{before}{mark}{query}"


def _has_user(address: str) -> bool:
    """Whether there is a user, also one whose password has an unescaped slash."""
    try:
        url = urlsplit(address)
        return "@" in url.netloc or ("@" in address and url.port is None and ":" in url.netloc)
    except ValueError:
        return "@" in address


def _mask_parameter(part: str) -> str:
    name, sign, _ = part.partition("=")
    if name in _PLAIN_PARAMETERS:
        return part
    return f"{name}={MASKED}" if sign else MASKED


# --- settings --------------------------------------------------------------------------------


def mask(value: Any) -> Any:
    """A JSON value with every secret in it masked, however deep; other values stay as they are."""
    if isinstance(value, str):
        return mask_addresses(value)
    if isinstance(value, Mapping):
        return {key: mask_named(key, inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return type(value)([mask(inner) for inner in value]) if _plain(value) else value
    return value


def mask_named(name: Any, value: Any) -> Any:
    """:func:`mask` of a value of this name."""
    secret = is_secret_name(str(name)) and value is not None and not isinstance(value, bool)
    return MASKED if secret else mask(value)


def _plain(value: Any) -> bool:
    return type(value) in (list, tuple)


def texts_in(value: Any) -> Iterator[str]:
    """Every name and every string inside a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield str(name)
            yield from texts_in(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from texts_in(inner)


def refuse_secrets(place: str, settings: Any) -> None:
    """Raise :class:`ConfigError` if ``settings`` hold what :func:`mask` would mask."""
    if settings and mask(settings) != settings:
        raise ConfigError(
            f"{place}: a secret is not taken here, since it would be written to the results"
        )


# --- values ----------------------------------------------------------------------------------

_learnt: set[str] = set()
_FOLDERS = ("PWD", "OLDPWD")  # where a process was started, and no password


_SCHEME = re.compile(r"^(basic|bearer|token) +", re.IGNORECASE)


def learn(value: Any) -> None:
    """Have the streams mask every secret inside a JSON value (see :func:`masked_streams`)."""
    _learnt.update(found for found in _secrets_in(value) if len(found) >= LEAST_LENGTH)


def _secrets_in(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            if is_secret_name(str(name)):
                for text in texts_in(inner):
                    yield from (text, _SCHEME.sub("", text))
            else:
                yield from _secrets_in(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _secrets_in(inner)
    elif isinstance(value, str):
        for address in _ADDRESS.findall(value):
            before, _, query = address.partition("://")[2].partition("?")
            if _has_user(address.partition("?")[0]):
                user, _, password = before.rpartition("@")[0].partition(":")
                yield from (password or user, unquote(password or user))
            for part in query.split("&"):
                name, _, inner = part.partition("=")
                if name not in _PLAIN_PARAMETERS:
                    yield from (inner or name, unquote(inner or name))


def known_secrets(environ: Mapping[str, str] | None = None) -> set[str]:
    """The values of all variables that hold a key by their name."""
    environ = os.environ if environ is None else environ
    names = [name for name in environ if name not in _FOLDERS and is_secret_name(name)]
    values = [environ[name].strip() for name in names]
    return {value for value in values if len(value) >= LEAST_LENGTH}


def holds_secret(value: Any, secrets: set[str]) -> bool:
    """Whether a JSON value has one of ``secrets`` in it, plain or escaped as in an address."""
    forms = {form for secret in secrets for form in (secret, quote(secret, safe=""))}
    return any(form in text for text in texts_in(value) for form in forms)


_PLAIN_WORD = re.compile(r"[A-Za-z0-9_.-]{0,20}")
_LIKE_A_KEY = re.compile(
    r"(sk|pk|rk|hf|gsk|gh[a-z]|xai|key|glpat|github_pat|akia|aiza|bearer|eyj)[-_A-Z0-9].*"
    r"|(?=.*[0-9])(?=.*[a-z])[a-z0-9_-]{16,}",
    re.IGNORECASE,
)


def shown(value: Any, otherwise: str = "this value") -> str:
    """``value`` for a message, if it is a number or a short plain word; else ``otherwise``.

    What was put into the wrong place may be a secret.
    """
    if isinstance(value, list | tuple):
        plain = all(shown(inner, "") for inner in value)
    elif isinstance(value, str):
        plain = bool(_PLAIN_WORD.fullmatch(value)) and not _LIKE_A_KEY.fullmatch(value)
        plain = plain and not (value and holds_secret(value, known_secrets() | _learnt))
    else:
        plain = value is None or isinstance(value, int | float)
    return repr(value) if plain else otherwise


def hide(text: str, secrets: set[str]) -> str:
    """``text`` with ``secrets`` and what its addresses hide masked."""
    return mask_addresses(_without(text, secrets))


def hide_in_answer(text: str) -> str:
    """An answer of the model under test without a key of ours, should its endpoint repeat one.

    Only what is too long to be a word: an answer is what is scored.
    """
    return _without(text, {s for s in known_secrets() | _learnt if len(s) >= _NO_WORD})


def _without(text: str, secrets: set[str]) -> str:
    for secret in sorted(secrets, key=len, reverse=True):  # one may be part of another
        text = text.replace(secret, MASKED)
    return text


# --- streams ---------------------------------------------------------------------------------


class _MaskingStream:
    """A text stream that writes no secret: those learnt, those of the environment, addresses."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(hide(text, known_secrets() | _learnt))
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def masked_streams() -> Iterator[None]:
    """Mask secrets in all that is printed and logged, by libraries and in tracebacks too.

    After an exception the streams stay as they are, since the interpreter shows it later.
    """
    streams = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (_MaskingStream(stream) for stream in streams)
    yield
    sys.stdout, sys.stderr = streams
    _learnt.clear()
