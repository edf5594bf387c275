"""The documents as the page's script reads them: an index, and blocks of texts.

Each is gzipped JSON in base64, so that nothing in it is markup, and only what is looked at is
unpacked. The index has what the list and its filters need, a block the texts of some documents.
"""

from __future__ import annotations

import base64
import gzip
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from custom_metrics.analysis.documents import PLAWBENCH, Answered, Document, Graded
from custom_metrics.report.labels import AXES, STATUSES, SUBSETS, category_label
from custom_metrics.report.summary import Summary, tasks_of
from custom_metrics.report.text import markdown, visible
from custom_metrics.report.trust import is_split

_BLOCK_CHARACTERS = 400_000
_TITLE_CHARACTERS = 160
_STATUSES = list(STATUSES)
_CONTRADICTS, _SPLIT = 1, 2  # bits of a criterion's flags


@dataclass(frozen=True)
class Packed:
    """What goes into the page."""

    index: str
    blocks: tuple[str, ...]
    keys: Mapping[int, str]

    def key(self, doc: Document) -> str:
        """What names a document in the page's address."""
        return self.keys[id(doc)]


class _Numbers:
    """Values by number, in the order of their first appearance."""

    def __init__(self) -> None:
        self.values: dict[str, int] = {}

    def of(self, value: str) -> int:
        return self.values.setdefault(value, len(self.values))


def pack(summary: Summary) -> Packed:
    """All documents of all runs; one that several runs have stands there once."""
    suites = {suite.name: number for number, suite in enumerate(summary.suites)}
    by_key: dict[str, list[Document | None]] = {}
    keys: dict[int, str] = {}
    for number, run in enumerate(summary.runs):
        for doc in run.documents:
            key = f"{doc.task}/{doc.id}"
            # With other criteria or another prompt it is another document.
            while key in by_key and _shown(next(filter(None, by_key[key]))) != _shown(doc):
                key += "'"
            by_key.setdefault(key, [None] * len(summary.runs))[number] = doc
            keys[id(doc)] = key
    members = {
        task: sorted({suites[s] for run in summary.runs for s in suites
                      if s in run.rows and task in tasks_of(run, s)})
        for task in {doc.task for run in summary.runs for doc in run.documents}
    }  # fmt: skip
    facets = _facets()
    numbers = {key: _Numbers() for key, _ in facets}
    categories = _Numbers()
    entries: list[dict[str, Any]] = []
    blocks: list[str] = []
    waiting: list[dict[str, Any]] = []
    size = 0
    for key, docs in by_key.items():
        present = next(doc for doc in docs if doc is not None)
        entries.append({
            **_entry(key, present, docs, categories),
            "facets": [
                numbers[name].of(value) if (value := _facet(present, name)) else -1
                for name, _ in facets
            ],
            "suites": members[present.task],
            "block": len(blocks),
            "at": len(waiting),
        })  # fmt: skip
        texts = _texts(present, docs)
        waiting.append(texts)
        size += sum(len(m[1]) for m in texts["messages"])
        answers = [answer for answers in texts["runs"] for answer in answers or ()]
        size += sum(3 * len(a["answer"]) + 300 * len(a["notes"]) for a in answers)
        if size > _BLOCK_CHARACTERS:
            blocks.append(_packed(waiting))
            waiting, size = [], 0
    if waiting:
        blocks.append(_packed(waiting))
    index = {
        "runs": [visible(run.label) for run in summary.runs],
        "facets": [
            {"key": key, "label": label, "values": [visible(v) for v in numbers[key].values]}
            for key, label in facets
        ],
        "categories": [visible(name) for name in categories.values],
        "statuses": [STATUSES[status] for status in _STATUSES],
        "blocks": len(blocks),
        "docs": entries,
    }
    return Packed(_packed(index), tuple(blocks), keys)


def _shown(doc: Document) -> tuple[Any, ...]:
    """What the page shows once for all runs."""
    return [(c.id, c.weight, c.text) for c in doc.criteria], doc.messages, doc.axes


def _facets() -> list[tuple[str, str]]:
    """The properties of documents that the list can be filtered by."""
    axes = {key: label for named in AXES.values() for key, label in named.items()}
    # PLawBench's category of a document is its topic; the rubric's categories are the criteria's.
    axes.pop("category")
    return [
        ("task", "Task"),
        ("topic", "Topic"),
        *((k, v) for k, v in axes.items() if k != "topic"),
    ]


def _facet(doc: Document, name: str) -> str | None:
    if name == "task":
        return doc.task
    if name == "topic" and doc.benchmark == PLAWBENCH:
        return doc.axes.get("category")
    return doc.axes.get(name)


def _entry(
    key: str, doc: Document, docs: Sequence[Document | None], categories: _Numbers
) -> dict[str, Any]:
    question = next((m["content"] for m in reversed(doc.messages) if m["role"] == "user"), doc.id)
    described = [value for name in ("topic", "expert") if (value := _facet(doc, name))]
    return {
        "key": key,
        "id": visible(doc.id),
        "title": visible(" ".join(question[:2000].split())[:_TITLE_CHARACTERS]),
        "subtitle": visible(" · ".join(described)) or SUBSETS.get(doc.task, visible(doc.task)),
        "points": doc.benchmark == PLAWBENCH,
        "weights": [_plain(c.weight) for c in doc.criteria],
        "categories": [categories.of(category_label(c.category)) for c in doc.criteria],
        "runs": [_verdicts(other) if other else None for other in docs],
    }


def _verdicts(doc: Document) -> dict[str, Any]:
    """What the list needs: of several answers to a document the mean verdicts and every flag."""
    each = list(zip(*(answer.criteria for answer in doc.answers), strict=True))
    flags = [
        _CONTRADICTS * any(c.contradicts for c in same) + _SPLIT * any(is_split(c) for c in same)
        for same in each
    ]
    statuses = [_STATUSES.index(answer.status) for answer in doc.answers]
    return {
        "score": None if math.isnan(doc.score) else doc.score,
        **({"excluded": True} if doc.excluded else {}),
        "status": max(statuses),
        "met": [_mean([c.met for c in same]) for same in each],
        **({"flags": flags} if any(flags) else {}),
    }


def _mean(met: Sequence[float | None]) -> float | int | None:
    known = [value for value in met if value is not None]
    return _plain(sum(known) / len(known)) if len(known) == len(met) else None


def _plain(number: float) -> float | int:
    return int(number) if number == int(number) else number


def _texts(doc: Document, docs: Sequence[Document | None]) -> dict[str, Any]:
    return {
        "messages": [[visible(m["role"]), visible(m["content"])] for m in doc.messages],
        "criteria": [visible(c.text) for c in doc.criteria],
        "runs": [
            None if other is None else [_answer_texts(answer) for answer in other.answers]
            for other in docs
        ],
    }


def _answer_texts(answer: Answered) -> dict[str, Any]:
    return {
        "answer": visible(answer.text),
        "html": markdown(answer.text),
        "status": _STATUSES.index(answer.status),
        "met": [None if c.met is None else _plain(c.met) for c in answer.criteria],
        "notes": [_note(c) for c in answer.criteria],
        "remark": visible(answer.remark) if answer.remark else None,
    }


def _note(criterion: Graded) -> dict[str, Any]:
    note: dict[str, Any] = {
        "reason": visible(criterion.explanation or ""),
        "failure": visible(criterion.failure or ""),
        "breakdown": [
            [visible(str(b.get(name, ""))) for name in ("item", "points", "rationale")]
            for b in criterion.breakdown
        ],
        "votes": [_vote(vote) for vote in criterion.votes],
        "contradicts": criterion.contradicts,
        "split": is_split(criterion),
    }
    return {name: value for name, value in note.items() if value}


def _vote(vote: Mapping[str, Any]) -> str:
    met = vote.get("met")
    said = {1: "met", 0: "not met", None: "no verdict"}.get(met) or f"{100 * float(met or 0):.0f}%"
    why = vote.get("explanation") or vote.get("failure") or ""
    return visible(
        f"{vote.get('judge')} #{int(vote.get('repeat') or 0) + 1}: {said}. {why}".strip()
    )


def _packed(value: Any) -> str:
    return base64.b64encode(gzip.compress(orjson.dumps(value), 6, mtime=0)).decode("ascii")
