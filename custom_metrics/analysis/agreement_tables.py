"""What :mod:`custom_metrics.analysis.agree` found, as JSON and as tables for people."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from custom_metrics.analysis import strict_json
from custom_metrics.analysis.agree import PUBLISHED, Agreement
from custom_metrics.analysis.documents import PRBENCH


def as_json(found: Sequence[Agreement]) -> str:
    """Everything, as one JSON object; what cannot be said is null."""
    document = {
        "published": {"prbench": PUBLISHED},
        "agreements": [_agreement_as_dict(agreement) for agreement in found],
    }
    return strict_json.dumps(document)


def _agreement_as_dict(found: Agreement) -> dict[str, Any]:
    return {
        "first": found.first,
        "second": found.second,
        "benchmark": found.benchmark,
        "notes": list(found.notes),
        "score": found.score,
        "lines": [
            {"axis": line.axis, "value": line.value, **asdict(line.figures)} for line in found.lines
        ],
        "effect": asdict(found.effect) if found.effect else None,
        "differing": [
            {
                "task": pair.task,
                "document": pair.document,
                "criterion": pair.criterion.id,
                "text": pair.criterion.text,
                "category": pair.criterion.category,
                "weight": pair.criterion.weight,
                "first": pair.first,
                "second": pair.second,
                "first_reason": pair.first_reason,
                "second_reason": pair.second_reason,
            }
            for pair in found.differing
        ],
    }


def show(found: Sequence[Agreement], console: Console) -> None:
    """As tables for people."""
    for agreement in found:
        console.print(Text(f"A  {agreement.first}\nB  {agreement.second}"))
        console.print(_figures_table(agreement))
        if agreement.benchmark == PRBENCH:
            console.print(
                Text(
                    f"For scale: PRBench's paper has macro-F1 {PUBLISHED['macro_f1']} and κ "
                    f"{PUBLISHED['kappa']} between its judge and experts."
                )
            )
        console.print(Text(_effect_text(agreement)))
        if agreement.differing:
            console.print(_differing_table(agreement))
        for note in agreement.notes:
            console.print(Text(f"note: {note}"))


def _figures_table(agreement: Agreement) -> Table:
    table = Table(
        title=Text(f"Agreement on {agreement.benchmark}"),
        title_justify="left",
        box=box.SIMPLE_HEAD,
    )
    table.add_column("")
    is_verdicts = agreement.benchmark == PRBENCH
    columns = (
        ("n", "both met", "only A", "only B", "neither", "agreement", "Cohen's κ", "macro-F1")
        if is_verdicts
        else ("n", "B − A", "mean |B − A|", "correlation", "quadratic κ")
    )
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    for line in agreement.lines:
        name = "all" if line.axis is None else f"{line.axis}: {line.value}"
        cells = asdict(line.figures).values()
        table.add_row(Text(name), *(str(c) if isinstance(c, int) else _number(c) for c in cells))
    return table


def _number(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.3f}"


def _effect_text(agreement: Agreement) -> str:
    effect = agreement.effect
    if effect is None:
        return "No document has every verdict of both, so that scores cannot be compared."
    known = not math.isnan(effect.low)
    between = f" (95% interval {effect.low:+.4f} to {effect.high:+.4f})" if known else ""
    return (
        f"{agreement.score} over the {effect.documents} documents that both graded in full: A "
        f"{effect.first:.4f}, B {effect.second:.4f}, B − A {effect.value:+.4f}{between}; B is "
        f"higher on {effect.wins}, equal on {effect.ties}, lower on {effect.losses}."
    )


def _differing_table(agreement: Agreement) -> Table:
    table = Table(title=Text("Where they differ most"), title_justify="left", box=box.SIMPLE_HEAD)
    for name in ("weight", "A", "B"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("document")
    table.add_column("criterion", ratio=1)
    for pair in agreement.differing[:10]:
        table.add_row(
            f"{pair.criterion.weight:g}",
            f"{pair.first:g}" if agreement.benchmark == PRBENCH else f"{pair.first:.2f}",
            f"{pair.second:g}" if agreement.benchmark == PRBENCH else f"{pair.second:.2f}",
            Text(pair.document),
            Text(" ".join(pair.criterion.text.split())[:160]),
        )
    return table
