"""Reading a yes/no verdict out of a judge's reply. Pure functions.

The verdict is the last JSON object of the reply that has ``criteria_met``. A reply is refused
(:class:`Unreadable`) rather than guessed at: without such an object, with another type of value,
with two values in one object, or cut off before its end.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from custom_metrics.judge.calls import Unreadable, strict_object
from custom_metrics.judge.replies import excerpt, mended, reply_text, scan

_KEY = re.compile(r"""["'“”]?criteria_met["'“”]?\s*:\s*""")
_VALUE = re.compile(r"""["'“”]?(true|false|yes|no)["'“”]?\s*[,}\n]""", re.IGNORECASE)
_LAST_FIELD = re.compile(r"""["'“”]?\w+["'“”]?\s*,?\s*\}\s*\]?\s*(?:```\s*)?\Z""")
_FIRST_FIELD = re.compile(r"""\{\s*["'“”]?criteria_met["'“”]?\s*:""")
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


MET_SCHEMA = strict_object(explanation={"type": "string"}, criteria_met={"type": "boolean"})
"""What :func:`read_met` reads, the reason before the verdict."""


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
    text = reply_text(text)
    keys = list(_KEY.finditer(text))
    if not keys:
        raise Unreadable("no criteria_met in the reply")
    found = scan(text, _DECODER)
    owner = found.around(keys[-1].start())
    # The last mention has to be this object's own: an object that only precedes it is an example,
    # and one inside an object that does not parse is a quotation without escapes.
    if owner is None or any(start < owner[0] for start in found.broken):
        return _mended(text, keys)
    if any(start >= owner[1] for start in found.broken):
        raise Unreadable("another object begins after the verdict, and does not end")
    return _from_object(_only_object(owner[2]))


def write_met(overlaps: Sequence[float]) -> str:
    """The reply that a judge would write who saw nothing but one overlap in [0, 1]."""
    (overlap,) = overlaps
    explanation = f"lexical overlap {overlap:.2f} of 1 (a smoke test, not a judgement)"
    return json.dumps({"explanation": explanation, "criteria_met": overlap >= LEXICAL_THRESHOLD})


LEXICAL_THRESHOLD = 0.45


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    verdicts = [repr(value) for key, value in pairs if key == "criteria_met"]
    if len(set(verdicts)) > 1:
        raise Unreadable("criteria_met stands there twice, with different values")
    return result


_DECODER = json.JSONDecoder(object_pairs_hook=_distinct, strict=False)


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
        raise Unreadable(f"criteria_met is {excerpt(verdict)}, neither true nor false")
    explanation = value.get("explanation")
    return Met(verdict, explanation if isinstance(explanation, str) else "")


def _mended(text: str, keys: Sequence[re.Match[str]]) -> Met:
    """A verdict from an object that is not quite JSON; two ways of reading it have to agree."""
    key = keys[-1]
    start, end = text.find("{"), text.rfind("}")
    value = _VALUE.match(text, key.end())
    if start < 0 or end < key.end() or text.count("{") > text.count("}"):
        raise Unreadable("the reply ends before its verdict does")
    if not value:
        raise Unreadable("criteria_met is neither true nor false")
    mentioned = [_VALUE.match(text, other.end()) for other in keys]
    words = {_WORDS[match[1].lower()] for match in mentioned if match}
    # A quotation in the explanation may hold the other verdict: the object's own comes last then,
    # unless one stands at the object's beginning as well.
    own = _LAST_FIELD.match(text, key.end()) and not _FIRST_FIELD.match(text, start)
    if len(words) > 1 and not own:
        raise Unreadable("not JSON, and it holds both verdicts")
    candidates = mended(text[start : end + 1])
    objects = [
        item
        for item in (candidates if isinstance(candidates, list) else [candidates])
        if isinstance(item, dict) and "criteria_met" in item
    ]
    if not objects:
        raise Unreadable("no JSON object with criteria_met")
    met = _from_object(objects[-1])
    if met.met != _WORDS[value[1].lower()]:
        raise Unreadable("not JSON, and it can be read both ways")
    return met
