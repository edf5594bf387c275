"""People's verdicts, from a CSV file."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from custom_metrics.analysis.documents import PRBENCH, Document, Graded
from custom_metrics.errors import DataError

_COLUMNS = ("document", "criterion", "label")
_YES = ("1", "1.0", "true", "yes", "met")
_NO = ("0", "0.0", "false", "no", "unmet", "not met")


@dataclass(frozen=True)
class Label:
    """A person's verdict as it was written, and where."""

    text: str
    place: str


Labels = Mapping[tuple[str, str], Label]
"""By document and criterion."""


def read_labels(path: str) -> Labels:
    """A CSV file with the columns ``document``, ``criterion`` and ``label``; others are ignored.

    A blank label is none. Raises :class:`DataError` that names the line.
    """
    found: dict[tuple[str, str], Label] = {}
    try:
        with Path(path).expanduser().open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, strict=True)
            missing = [name for name in _COLUMNS if name not in (reader.fieldnames or ())]
            twice = [n for n in _COLUMNS if (reader.fieldnames or []).count(n) > 1]
            if twice:
                raise DataError(f"{path}: the column {twice[0]} stands twice in its first line")
            if missing:
                raise DataError(f"{path}: no column {', '.join(missing)} in its first line")
            for row in reader:
                place = f"{path}, line {reader.line_num}"
                document, criterion, label = ((row[name] or "").strip() for name in _COLUMNS)
                if not document or not criterion:
                    raise DataError(f"{place}: document and criterion are needed")
                if (document, criterion) in found:
                    raise DataError(
                        f"{place}: a second label for {criterion!r} of {document!r}; give each "
                        "person's labels in a file of their own"
                    )
                if label:
                    found[document, criterion] = Label(label, place)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: not CSV in UTF-8 ({error})") from None
    if not found:
        raise DataError(f"{path}: no labels in it")
    return found


def as_met(label: Label, document: Document, criterion: Graded) -> float | None:
    """The share of the criterion's weight that a label awards; None where there is none.

    Raises :class:`DataError` for a text that is no verdict, or no points that can be given.
    """
    if document.benchmark == PRBENCH:
        if label.text.casefold() in _YES + _NO:
            return float(label.text.casefold() in _YES)
        raise DataError(
            f"{label.place}: {label.text!r:.40} is none of {', '.join(_YES)}, {', '.join(_NO)}"
        )
    try:
        points = float(label.text)
    except ValueError:
        points = math.nan
    if not 0 <= points <= criterion.weight:
        raise DataError(
            f"{label.place}: points from 0 to {criterion.weight:g} are needed, not "
            f"{label.text!r:.40}"
        )
    return points / criterion.weight if criterion.weight else None
