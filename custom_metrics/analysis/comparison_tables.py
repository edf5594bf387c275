"""What :mod:`custom_metrics.analysis.compare` found, as JSON and as tables for people."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from custom_metrics.analysis import strict_json
from custom_metrics.analysis.compare import Comparison, Line
from custom_metrics.analysis.results import Run

_SHOWN_AXES = ("topic", "category")  # the others are in the JSON


def as_json(comparison: Comparison) -> str:
    """Everything, as one JSON object; what cannot be said is null."""
    return strict_json.dumps(
        {
            "first": _described(comparison.first),
            "second": _described(comparison.second),
            "differing": list(comparison.differing),
            "notes": list(comparison.notes),
            "lines": [_line_as_dict(line) for line in comparison.lines],
        }
    )


def _described(run: Run) -> dict[str, Any]:
    return {"label": run.label, "model": run.model, "date": run.date, "path": str(run.path)}


def _line_as_dict(line: Line) -> dict[str, Any]:
    numbers = {**asdict(line.difference), "moved": line.difference.moved}
    difference = numbers.pop("value")
    return {
        "task": line.task,
        "metric": line.metric,
        "axis": line.axis,
        "value": line.value,
        "difference": difference,
        **numbers,
    }


def show(comparison: Comparison, console: Console) -> None:
    """As tables for people."""
    a, b = comparison.first.label, comparison.second.label
    console.print(Text(f"A  {a}\nB  {b}\nDifferences are B − A, with 95% intervals."))
    for text in comparison.differing:
        console.print(Text(f"NOT ALIKE: {text}", style="bold red"))
    overall = [line for line in comparison.lines if line.axis is None]
    console.print(_table("Scores", overall, lambda line: (line.task, line.metric)))
    for axis in ("rubric category", *_SHOWN_AXES):
        lines = [line for line in comparison.lines if line.axis == axis]
        if lines:
            console.print(_table(f"By {axis}", lines, lambda line: (line.task, str(line.value))))
    console.print(
        Text(
            "wins / ties / losses are documents that B does better, the same or worse on. * the "
            "interval leaves out 0 (each line on its own: of twenty, one does by chance). "
            "Smallest: the true difference that as many documents, spread like these, find with "
            "80% power at 5%."
        )
    )
    for note in comparison.notes:
        console.print(Text(f"note: {note}"))


def _table(title: str, lines: Sequence[Line], names: Callable[[Line], tuple[str, str]]) -> Table:
    table = Table(title=Text(title), title_justify="left", box=box.SIMPLE_HEAD)
    for name in ("task", ""):
        table.add_column(name)
    for name in ("A", "B", "B − A", "95% interval", "n", "wins/ties/losses", "smallest"):
        table.add_column(name, justify="right", no_wrap=True)
    for line in lines:
        d = line.difference
        table.add_row(
            *(Text(name) for name in names(line)),
            f"{d.first:.4f}",
            f"{d.second:.4f}",
            f"{d.value:+.4f}{'*' if d.told_apart else ' '}",
            "" if math.isnan(d.low) else f"{d.low:+.4f} to {d.high:+.4f}",
            str(d.documents),
            f"{d.wins}/{d.ties}/{d.losses}",
            "" if math.isnan(d.smallest) else f"{d.smallest:.4f}",
        )
    return table
