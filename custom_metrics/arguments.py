"""Command lines whose errors never repeat what was typed: it may be a key in the wrong place."""

from __future__ import annotations

import argparse
import contextlib
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from custom_metrics.errors import ConfigError
from custom_metrics.masking import shown

_KEY = re.compile(r"\s*(\w+)=\s*")
_NEXT_PAIR = re.compile(r",(?=\w+=)")
# A setting that takes pairs itself: all that follows it in the same argument.
_TAKES_PAIRS = "judge_model_args"
_QUOTED = re.compile(r"'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\"")
_FLAG = re.compile(r"--?[a-z_]{1,40}")
_FLAG_VALUE = re.compile(r"(--\w+)=\S+")


def read_pairs(option: str, values: Sequence[str]) -> dict[str, str]:
    """``key=value`` pairs, separated by blanks or commas; values keep commas of their own, a JSON
    list or object ends where it does, and ``judge_model_args`` is the rest of its argument.

    Raises :class:`ConfigError` that says which pair is none.
    """
    pairs: dict[str, str] = {}
    parts = [part for value in values for part in _parts(value)]
    for number, part in enumerate(parts, 1):
        key, separator, value = part.partition("=")
        if not separator:
            raise ConfigError(f"{option}: key=value is needed; number {number} has no '='")
        pairs[key.strip()] = value
    return pairs


def _parts(text: str) -> Iterator[str]:
    """The pairs of one argument."""
    while (end := _end_of_pair(text)) < len(text):
        yield text[:end]
        text = text[end + 1 :]
    yield text


def _end_of_pair(text: str) -> int:
    key = _KEY.match(text)
    if key and key[1] == _TAKES_PAIRS:
        return len(text)
    if key and text.startswith(("[", "{"), key.end()):
        with contextlib.suppress(ValueError, RecursionError):
            _, end = json.JSONDecoder().raw_decode(text, key.end())
            if not text[end:].strip():
                return len(text)
            if text[end] == ",":
                return end
    following = _NEXT_PAIR.search(text)
    return following.start() if following else len(text)


def read_json(place: str, text: str) -> Any:
    """JSON. Raises :class:`ConfigError` that says where it is none."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}: {error.msg}"
        raise ConfigError(f"{place}: not valid JSON ({where})") from None
    except (ValueError, RecursionError):
        raise ConfigError(f"{place}: not valid JSON") from None


def parse(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> argparse.Namespace:
    """Parse ``arguments``; what is wrong ends the program with flags and plain words only."""
    for each in (parser, *_commands_of(parser)):
        _quieten(each)
    namespace, rest = parser.parse_known_args(arguments)
    if rest:
        flags = [
            flag for flag in (part.partition("=")[0] for part in rest) if _FLAG.fullmatch(flag)
        ]
        more = [f"{len(rest) - len(flags)} more"] if len(flags) < len(rest) else []
        parser.error(f"unrecognized arguments: {', '.join(flags + more)}")
    return namespace


def _commands_of(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from action.choices.values()


def _quieten(parser: argparse.ArgumentParser) -> None:
    loud = parser.error

    def error(message: str) -> NoReturn:
        message = _QUOTED.sub(lambda match: match[0] if shown(match[0][1:-1], "") else "…", message)
        loud(_FLAG_VALUE.sub(r"\1=…", message))

    parser.error = error  # type: ignore[method-assign]
