"""The verdicts of runs as one table, a row a verdict, for pandas or DuckDB."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow
import pyarrow.parquet

from custom_metrics.errors import ConfigError
from custom_metrics.results import Document, Graded, Run

Cell = str | float | int | bool | None

# Name, type in parquet. ``met`` is the share of ``weight`` that was awarded: 0 or 1 for a yes or
# no, between them for points; null without a verdict. ``score`` is the document's, null if it has
# none.
COLUMNS = (
    ("run", pyarrow.string()),
    ("model", pyarrow.string()),
    ("benchmark", pyarrow.string()),
    ("task", pyarrow.string()),
    ("document", pyarrow.string()),
    ("topic", pyarrow.string()),
    ("score", pyarrow.float64()),
    ("answer_status", pyarrow.string()),
    ("criterion", pyarrow.string()),
    ("category", pyarrow.string()),
    ("weight", pyarrow.float64()),
    ("met", pyarrow.float64()),
    ("contradicts", pyarrow.bool_()),
    ("text", pyarrow.string()),
    ("explanation", pyarrow.string()),
    ("failure", pyarrow.string()),
)


def rows(runs: Sequence[Run]) -> Iterator[dict[str, Cell]]:
    """One row a verdict, with the keys of :data:`COLUMNS`."""
    for run in runs:
        for doc in run.documents:
            for criterion in doc.criteria:
                yield _row(run, doc, criterion)


def _row(run: Run, doc: Document, criterion: Graded) -> dict[str, Cell]:
    return {
        "run": run.label,
        "model": run.model,
        "benchmark": doc.benchmark,
        "task": doc.task,
        "document": doc.id,
        "topic": doc.axes.get("topic") or doc.axes.get("category"),
        "score": None if doc.score != doc.score else doc.score,
        "answer_status": doc.status,
        "criterion": criterion.id,
        "category": criterion.category,
        "weight": criterion.weight,
        "met": criterion.met,
        "contradicts": criterion.contradicts,
        "text": criterion.text,
        "explanation": criterion.explanation,
        "failure": criterion.failure,
    }


def write_csv(runs: Sequence[Run], path: Path) -> None:
    """:func:`rows` as UTF-8 CSV with a header. Raises :class:`ConfigError` if it cannot."""
    try:
        with path.open("w", encoding="utf-8", newline="") as out:
            writer = csv.DictWriter(out, [name for name, _ in COLUMNS])
            writer.writeheader()
            writer.writerows(rows(runs))
    except OSError as error:
        raise ConfigError(f"--csv {path}: {error.strerror or error}") from None


def write_parquet(runs: Sequence[Run], path: Path) -> None:
    """:func:`rows` as parquet. Raises :class:`ConfigError` if it cannot."""
    table = pyarrow.Table.from_pylist(list(rows(runs)), schema=pyarrow.schema(COLUMNS))
    try:
        pyarrow.parquet.write_table(table, path)
    except OSError as error:
        raise ConfigError(f"--parquet {path}: {error.strerror or error}") from None
