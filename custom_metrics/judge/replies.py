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
_CUT_NUMBER = re.compile(r"[-+\d.eE]+\s*\Z")
# Mending takes time that grows with the square of these; no verdict has so many.
_MOST_BRACES = 2000


@dataclass(frozen=True)
class Scan:
    """What of a reply is JSON: ``(start, end, value)`` of each object or list, outermost only,
    and where else an object seems to begin that does not parse."""

    values: tuple[tuple[int, int, Any], ...]
    broken: tuple[int, ...]

    def around(self, position: int) -> tuple[int, int, Any] | None:
        """The value whose text holds ``position``."""
        return next((value for value in self.values if value[0] <= position < value[1]), None)


def reply_text(text: str) -> str:
    """A reply without the judge's own reasoning. Raises :class:`Unreadable` if nothing is left."""
    answer = clean_answer(text)
    if answer.empty:
        cut = answer.status == "cut_in_reasoning"
        raise Unreadable("the reply ends inside its reasoning" if cut else "an empty reply")
    return answer.text


def scan(text: str, decoder: json.JSONDecoder | None = None) -> Scan:
    """Find all JSON in ``text``. Raises :class:`Unreadable` where it is nested too deeply."""
    decoder = decoder or json.JSONDecoder(strict=False)
    values: list[tuple[int, int, Any]] = []
    position = 0
    while match := _START.search(text, position):
        start = match.start()
        try:
            value, position = decoder.raw_decode(text, start)
        except json.JSONDecodeError:
            position = start + 1
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

    A number at which the text ends is not taken for whole. Raises :class:`Unreadable` if there is
    no such object, or if another one begins after it and does not end.
    """
    text = reply_text(text)

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len({repr(value) for name, value in pairs if name == key}) > 1:
            raise Unreadable(f"{key} stands there twice, with different values")
        return dict(pairs)

    last = text.rfind(f'"{key}"')
    if last < 0:
        raise Unreadable(f"no {key} in the reply")
    found = scan(text, json.JSONDecoder(object_pairs_hook=once, strict=False))
    owner = found.around(last)
    if owner is not None:
        if any(start >= owner[1] for start in found.broken):
            raise Unreadable("another object begins after the verdict, and does not end")
        return _having(owner[2], key)
    start = text.rfind("{", 0, last)
    if start < 0:
        raise Unreadable(f"{key} is not in a JSON object")
    return _having(mended(_CUT_NUMBER.sub("", text[start:].split("```")[0])), key)


def _having(value: Any, key: str) -> dict[str, Any]:
    for candidate in reversed(value if isinstance(value, list) else [value]):
        if isinstance(candidate, dict) and key in candidate:
            return candidate
    raise Unreadable(f"{key} is not at the object's top level")
