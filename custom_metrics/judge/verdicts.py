"""Reading a yes/no verdict out of a judge's reply. Pure functions.

The verdict is the last JSON object of the reply that has ``criteria_met``. A reply is refused
(:class:`Unreadable`) rather than guessed at: without such an object, with another type of value,
with two values in one object, or cut off before its end.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import json_repair

from custom_metrics.judge.calls import Unreadable

_KEY = re.compile(r"""["'“”]?criteria_met["'“”]?\s*:\s*""")
_VALUE = re.compile(r"""["'“”]?(true|false|yes|no)["'“”]?\s*[,}\n]""", re.IGNORECASE)
_REASONING = re.compile(r"<(think|thinking|reasoning)>.*?</\1>", re.IGNORECASE | re.DOTALL)
_START = re.compile(r"\{|\[\s*\{")
_WORDS = {"true": True, "yes": True, "false": False, "no": False}

_SAYS_UNMET = re.compile(
    r"\b(criteri(on|a) (is|was|are|has|have)( therefore| thus| hence)? not( been)? (met|satisfied)"
    r"|does not meet (the|this) criteri)",
    re.IGNORECASE,
)
_SAYS_MET = re.compile(
    r"\b(criteri(on|a) (is|was|are|has been|have been)( therefore| thus| hence| fully)? "
    r"(met|satisfied)|(?<!not )(fully )?meets (the|this) criteri)",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Met:
    """A yes/no verdict with the judge's reason."""

    met: bool
    explanation: str

    @property
    def contradictory(self) -> bool:
        """Whether the explanation says in so many words the opposite of the verdict."""
        says_met = bool(_SAYS_MET.search(self.explanation))
        says_unmet = bool(_SAYS_UNMET.search(self.explanation))
        return says_met != says_unmet and says_unmet == self.met


def read_met(text: str) -> Met:
    """The verdict in a reply's text. Raises :class:`Unreadable`."""
    text = _REASONING.sub("", text)
    keys = list(_KEY.finditer(text))
    if not keys:
        raise Unreadable("no criteria_met in the reply" if text.strip() else "an empty reply")
    for start, end, value in _json_values(text):
        # The last mention has to be this object's own: an object that only precedes it is an
        # example, or a quotation inside a verdict whose quotes were not escaped.
        if start <= keys[-1].start() < end:
            return _from_object(_only_object(value))
    return _repaired(text, keys[-1])


def write_met(overlaps: Sequence[float]) -> str:
    """The reply that a judge would write who saw nothing but one overlap in [0, 1]."""
    (overlap,) = overlaps
    explanation = f"lexical overlap {overlap:.2f} of 1 (a smoke test, not a judgement)"
    return json.dumps({"explanation": explanation, "criteria_met": overlap >= LEXICAL_THRESHOLD})


LEXICAL_THRESHOLD = 0.45


def _json_values(text: str) -> Iterator[tuple[int, int, Any]]:
    """``(start, end, value)`` of every object or list in ``text`` that parses, outermost first."""
    decoder = json.JSONDecoder(object_pairs_hook=_distinct, strict=False)
    position = 0
    while match := _START.search(text, position):
        try:
            value, position = decoder.raw_decode(text, match.start())
        except (json.JSONDecodeError, RecursionError):
            position = match.start() + 1
            continue
        yield match.start(), position, value


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    verdicts = [repr(value) for key, value in pairs if key == "criteria_met"]
    if len(set(verdicts)) > 1:
        raise Unreadable("criteria_met stands there twice, with different values")
    return result


def _only_object(value: Any) -> dict[str, Any]:
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if not isinstance(value, dict):
        raise Unreadable("a list of verdicts where one was asked for")
    if "criteria_met" not in value:
        raise Unreadable("criteria_met is not at the object's top level")
    return value


def _from_object(value: dict[str, Any]) -> Met:
    verdict = value["criteria_met"]
    if isinstance(verdict, str):
        verdict = _WORDS.get(verdict.strip().lower(), verdict)
    if not isinstance(verdict, bool):
        raise Unreadable(f"criteria_met is {verdict!r}, neither true nor false")
    explanation = value.get("explanation")
    return Met(verdict, explanation if isinstance(explanation, str) else "")


def _repaired(text: str, key: re.Match[str]) -> Met:
    """A verdict from an object that is not quite JSON; two ways of reading it have to agree."""
    start, end = text.find("{"), text.rfind("}")
    value = _VALUE.match(text, key.end())
    if start < 0 or end < key.end():
        raise Unreadable("the reply ends before its verdict does")
    if not value:
        raise Unreadable("criteria_met is neither true nor false")
    try:
        repaired = json_repair.loads(text[start : end + 1])
    except (ValueError, RecursionError):
        repaired = None
    candidates = repaired if isinstance(repaired, list) else [repaired]
    objects = [item for item in candidates if isinstance(item, dict) and "criteria_met" in item]
    if not objects:
        raise Unreadable("no JSON object with criteria_met")
    met = _from_object(objects[-1])
    if met.met != _WORDS[value[1].lower()]:
        raise Unreadable("not JSON, and it can be read both ways")
    return met
