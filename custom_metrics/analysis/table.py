"""The verdicts of runs as one table, a row a verdict, for pandas or DuckDB."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow
import pyarrow.parquet

from custom_metrics.analysis.documents import Answered, Document, Graded
from custom_metrics.analysis.results import Run
from custom_metrics.output import replacing

Cell = str | float | int | bool | None

_TEXT, _NUMBER, _COUNT = pyarrow.string(), pyarrow.float64(), pyarrow.int32()

COLUMNS = (
    # The run: its label in this table, the model, and who judged.
    ("run", _TEXT),
    ("model", _TEXT),
    ("judge", _TEXT),
    # The document and what describes it; null where the benchmark has no such thing.
    ("benchmark", _TEXT),
    ("task", _TEXT),
    ("document", _TEXT),
    ("field", _TEXT),
    ("topic", _TEXT),  # of PRBench
    ("expert", _TEXT),
    ("turns", _COUNT),  # of the user
    ("economic_pathway", _TEXT),
    ("decision_type", _TEXT),
    ("subset", _TEXT),  # of PLawBench
    ("case_category", _TEXT),  # of PLawBench, in Chinese
    # The document's clipped_score or acc, over all its answers; null if it has none.
    ("score", _NUMBER),
    # The answer, counted from 0, and whether it was "answered", "empty" or "cut_in_reasoning".
    ("answer", _COUNT),
    ("answer_status", _TEXT),
    # The criterion: PRBench's, or a section of PLawBench's rubric with its points as weight.
    ("criterion", _TEXT),
    ("category", _TEXT),
    ("weight", _NUMBER),
    # The share of the weight that was awarded: 0 or 1 for a yes or no, between them for points;
    # null without a verdict.
    ("met", _NUMBER),
    ("contradicts", pyarrow.bool_()),  # the verdict its own explanation
    # How many of several opinions were given, and the mean of their "met"; null with one opinion.
    ("opinions", _COUNT),
    ("opinions_met", _NUMBER),
    ("text", _TEXT),
    ("explanation", _TEXT),
    ("failure", _TEXT),
)


def rows(runs: Sequence[Run]) -> Iterator[dict[str, Cell]]:
    """One row a verdict, with the keys of :data:`COLUMNS`."""
    for run in runs:
        judges = {task: run.provenance(task).judge_name for task in run.configs}
        for doc in run.documents:
            described = {**_of_run(run, judges[doc.task]), **_of_document(doc)}
            for number, answer in enumerate(doc.answers):
                for criterion in answer.criteria:
                    yield {**described, **_of_verdict(number, answer, criterion)}


def _of_run(run: Run, judge: str) -> dict[str, Cell]:
    return {"run": run.label, "model": run.model, "judge": judge}


def _of_document(doc: Document) -> dict[str, Cell]:
    turns = doc.axes.get("turns")
    return {
        "benchmark": doc.benchmark,
        "task": doc.task,
        "document": doc.id,
        "field": doc.axes.get("field"),
        "topic": doc.axes.get("topic"),
        "expert": doc.axes.get("expert"),
        "turns": int(turns) if turns else None,
        "economic_pathway": doc.axes.get("economic_pathway"),
        "decision_type": doc.axes.get("decision_type"),
        "subset": doc.axes.get("subset"),
        "case_category": doc.axes.get("category"),
        "score": None if doc.score != doc.score else doc.score,
    }


def _of_verdict(number: int, answer: Answered, criterion: Graded) -> dict[str, Cell]:
    votes = [float(v["met"]) for v in criterion.votes if v["met"] is not None]
    return {
        "answer": number,
        "answer_status": answer.status,
        "criterion": criterion.id,
        "category": criterion.category,
        "weight": float(criterion.weight),
        "met": criterion.met,
        "contradicts": criterion.contradicts,
        "opinions": len(votes) if criterion.votes else None,
        "opinions_met": sum(votes) / len(votes) if votes else None,
        "text": criterion.text,
        "explanation": criterion.explanation,
        "failure": criterion.failure,
    }


def write_csv(runs: Sequence[Run], path: Path) -> None:
    """:func:`rows` as UTF-8 CSV with a header. Raises :class:`ConfigError` if it cannot."""
    with replacing(path) as part, part.open("w", encoding="utf-8", newline="") as out:
        writer = csv.DictWriter(out, [name for name, _ in COLUMNS])
        writer.writeheader()
        writer.writerows(rows(runs))


def write_parquet(runs: Sequence[Run], path: Path) -> None:
    """:func:`rows` as parquet, a row group a run. Raises :class:`ConfigError` if it cannot."""
    schema = pyarrow.schema(COLUMNS)
    with replacing(path) as part, pyarrow.parquet.ParquetWriter(part, schema) as writer:
        for run in runs:
            writer.write_table(pyarrow.Table.from_pylist(list(rows([run])), schema=schema))
