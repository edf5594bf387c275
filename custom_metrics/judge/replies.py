"""Finding JSON in what a judge wrote. Pure functions."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

import json_repair

from custom_metrics.answer import clean_answer
from custom_metrics.judge.calls import Unreadable

# Where JSON may begin, and where an object seems to.
_START = re.compile(r"""\{\s*["}]|\[\s*\{""")
_OPENING = re.compile(r"""\{(?=\s*(?:["'“”\w}]|\Z))""")
_WHOLE_OBJECT = re.compile(r"\s*(?:```(?:json)?\s*)?(\{.*\})\s*(?:```\s*)?\Z", re.DOTALL)
_CUT_NUMBER = re.compile(r"[-+\d.eE]+\s*\Z")
# Points as a judge writes them, and nothing behind them that would change their meaning.
_POINTS_KEY = re.compile(r'"total_points"')
_PLAIN_POINTS = re.compile(
    r"""\s*:\s*("?)\s*\+?(?P<points>\d{1,9}(?:\.\d+)?)\s*分?(?:\s*[/／]\s*\d+(?:\.\d+)?\s*分?)?\s*\1"""
    r"""[ \t]*(?=[,}\]]|//|\#|\s*\n\s*["}\]])"""
)
_LEADING_NUMBER = re.compile(r"\s*\+?(\d+(?:\.\d+)?)")
_EXCERPT_LENGTH = 200
# Mending takes time that grows with the square of these; no verdict has so many.
_MOST_BRACES = 2000
# Line breaks inside strings are no reason to refuse a reply.
_LENIENT = json.JSONDecoder(strict=False)


@dataclass(frozen=True)
class Scan:
    """What of a reply is JSON: ``(start, end, value)`` of each object or list, outermost only,
    and where else an object seems to begin that does not parse."""

    values: tuple[tuple[int, int, Any], ...]
    broken: tuple[int, ...]

    def around(self, position: int) -> tuple[int, int, Any] | None:
        """The value whose text holds ``position``."""
        return next((value for value in self.values if value[0] <= position < value[1]), None)


def excerpt(value: Any) -> str:
    """A value out of a reply for a message: a reply may be as long as a book."""
    text = repr(value)
    return text if len(text) <= _EXCERPT_LENGTH else f"{text[:_EXCERPT_LENGTH]} …"


def reply_text(text: str) -> str:
    """A reply without the judge's own reasoning. Raises :class:`Unreadable` if nothing is left."""
    if _is_object(text):  # a closing tag in it is one that the explanation speaks of
        return text.strip()
    answer = clean_answer(text)
    if answer.empty:
        cut = answer.status == "cut_in_reasoning"
        raise Unreadable("the reply ends inside its reasoning" if cut else "an empty reply")
    return answer.text


def _is_object(text: str) -> bool:
    """Whether a reply is one JSON object and nothing else, fenced or not."""
    match = _WHOLE_OBJECT.match(text)
    if match is None:
        return False
    try:
        return isinstance(_LENIENT.decode(match[1]), dict)
    except (ValueError, RecursionError):
        return False


def scan(text: str, decoder: json.JSONDecoder | None = None) -> Scan:
    """Find all JSON in ``text``. Raises :class:`Unreadable` where it is nested too deeply."""
    decoder = decoder or _LENIENT
    values: list[tuple[int, int, Any]] = []
    position = 0
    while match := _START.search(text, position):
        start = match.start()
        try:
            value, position = decoder.raw_decode(text, start)
        except json.JSONDecodeError:
            position = start + 1
        except Unreadable:
            raise
        except ValueError:  # Python converts no integer of more than 4,300 digits
            raise Unreadable("a number of thousands of digits") from None
        except RecursionError:
            raise Unreadable("the reply is nested too deeply") from None
        else:
            values.append((start, position, value))
    broken: list[int] = []
    position = 0
    for start, end, _ in [*values, (len(text), len(text), None)]:
        broken += [match.start() for match in _OPENING.finditer(text, position, start)]
        position = end
    return Scan(tuple(values), tuple(broken))


def mended(text: str) -> Any:
    """``text`` as JSON, with trailing commas, missing quotes and open containers mended.

    Raises :class:`Unreadable` if that is beyond mending.
    """
    if text.count("{") + text.count("[") > _MOST_BRACES:
        raise Unreadable("not JSON, and too long to be mended")
    try:
        return json_repair.loads(text)
    except (ValueError, RecursionError):
        raise Unreadable("not JSON, and beyond mending") from None


def object_with(text: str, key: str) -> dict[str, Any]:
    """The last JSON object of a reply that has ``key``, mended where it is not quite JSON.

    Mending guesses, so points out of a mended object count only if they stand in the text as plain
    numbers, each once: no sums, no quotations. A number at which the text ends is not taken for
    whole. Raises :class:`Unreadable` if there is no such object, if another one begins after it
    and does not end, or if it stands inside one that does not parse.
    """
    text = reply_text(text)
    last = text.rfind(f'"{key}"')
    if last < 0:
        raise Unreadable(f"no {key} in the reply")
    found = scan(text, _DECODER)
    owner = found.around(last)
    if owner is not None:
        if any(start >= owner[1] for start in found.broken):
            raise Unreadable("another object begins after the verdict, and does not end")
        if _enclosing(text, found.broken, owner[0]) is not None:
            raise Unreadable(f"{key} stands inside an object that does not parse")
        return _having(owner[2], key)
    start = _enclosing(text, found.broken, last)
    if start is None:
        raise Unreadable(f"{key} is not in a JSON object")
    span = _CUT_NUMBER.sub("", text[start:].split("```")[0])
    if start + len(span) <= last:
        raise Unreadable(f"{key} is not in the object that begins before it")
    value = mended(span)
    if _points_in_text(span) != _points_in_value(value):
        raise Unreadable("not JSON, and its total_points can be read in more than one way")
    return _having(value, key)


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object, refused where a key stands in it twice with different values."""
    result = dict(pairs)
    if len(result) < len(pairs):
        for name, value in pairs:
            if repr(result[name]) != repr(value):
                raise Unreadable(f"{excerpt(name)} stands there twice, with different values")
    return result


_DECODER = json.JSONDecoder(object_pairs_hook=_distinct, strict=False)


def _enclosing(text: str, starts: tuple[int, ...], position: int) -> int | None:
    """The first of ``starts`` whose object is still open at ``position``, counting brackets."""
    for start in starts:
        if start >= position:
            return None
        depth = 0
        for character in text[start:position]:
            depth += (character in "{[") - (character in "}]")
            if depth <= 0:
                break
        else:
            return start
    return None


def _points_in_text(text: str) -> list[float] | None:
    """Every ``total_points`` in their order; None if one is anything but a plain number."""
    found = [_PLAIN_POINTS.match(text, key.end()) for key in _POINTS_KEY.finditer(text)]
    return None if None in found else [float(match["points"]) for match in found if match]


def _points_in_value(value: Any) -> list[float | None]:
    """Every ``total_points`` of a parsed value in their order; None for what is no number."""
    if isinstance(value, list):
        return [points for member in value for points in _points_in_value(member)]
    if not isinstance(value, dict):
        return []
    return [
        points
        for name, member in value.items()
        for points in ([_plain(member)] if name == "total_points" else _points_in_value(member))
    ]


def _plain(value: Any) -> float | None:
    match = _LEADING_NUMBER.match(str(value))
    return float(match[1]) if match else None


def _having(value: Any, key: str) -> dict[str, Any]:
    for candidate in reversed(value if isinstance(value, list) else [value]):
        if isinstance(candidate, dict) and key in candidate:
            return candidate
    raise Unreadable(f"{key} is not at the object's top level")
