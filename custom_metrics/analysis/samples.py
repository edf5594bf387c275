"""Samples files, read back as documents, each line checked by one declaration of what it holds."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field, TypeAdapter, ValidationError

from custom_metrics.analysis.documents import (
    AXES,
    PLAWBENCH,
    PRBENCH,
    Answered,
    Document,
    Graded,
)
from custom_metrics.data import deep_writable
from custom_metrics.errors import DataError

_MOST_SCORE, _MOST_WEIGHT = 1e6, 1e6  # far beyond any rubric's


# --- what a line holds ---------------------------------------------------------------------


def _text(value: Any) -> Any:
    """An id or a name may be a number."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


Name = Annotated[str, BeforeValidator(_text)]
Weight = Annotated[float, Field(ge=-_MOST_WEIGHT, le=_MOST_WEIGHT)]
Points = Annotated[float, Field(ge=0, le=_MOST_WEIGHT)]
Share = Annotated[float, Field(ge=0, le=1)]


class _Vote(BaseModel):
    judge: str
    repeat: int
    met: Share | None
    explanation: str | None = None
    failure: str | None = None


class _Criterion(BaseModel):
    id: Name
    text: str
    weight: Weight
    category: str
    met: Share | None
    explanation: str | None
    failure: str | None
    contradicts_explanation: bool
    votes: list[_Vote] | None = None


class _Section(BaseModel):
    section: str
    points: Points
    awarded: Points | None
    breakdown: list[dict[str, Any]]
    contradicts_breakdown: bool | None = None


class _PointsVote(BaseModel):
    judge: str
    repeat: int
    awarded: dict[str, Points | None] | None
    explanation: str | None = None
    failure: str | None


class _Grading(BaseModel):
    failure: str | None
    explanation: str | None
    sections: list[_Section]
    votes: list[_PointsVote] | None = None


class _Answer(BaseModel):
    answer: str
    answer_status: Literal["answered", "empty", "cut_in_reasoning"]
    criteria: list[_Criterion] | None = None
    grading: _Grading | None = None


class _Message(BaseModel):
    role: str
    content: str


class _RubricSection(BaseModel):
    dimension: str
    text: str


class _Doc(BaseModel):
    id: Name
    messages: list[_Message]
    rubric: Any = None  # a text of PLawBench; of PRBench the criteria as they were
    sections: list[_RubricSection] = Field(default_factory=list)
    answers: list[_Answer] | None = Field(default=None, min_length=1)
    turns: int | None = Field(default=None, ge=0, le=10**6)
    topic: Name | None = None
    expert: Name | None = None
    economic_pathway: Name | None = None
    decision_type: Name | None = None
    field: Name | None = None
    subset: Name | None = None
    category: Name | None = None


class _Line(BaseModel):
    doc: _Doc
    doc_hash: str
    metrics: list[str]


_LINE, _ANSWER = TypeAdapter(_Line), TypeAdapter(_Answer)
_SCORE = TypeAdapter(float)


# --- reading it ----------------------------------------------------------------------------


def read_documents(path: Path, task: str, split: str) -> list[Document]:
    """The documents of a samples file, read line by line. Raises :class:`DataError`."""
    found: dict[str, Document] = {}
    for number, text in _lines(path):
        place = f"{path}, line {number}"
        try:
            line = json.loads(text)
        except (ValueError, RecursionError):
            cut = "" if text.endswith("\n") else "; the file ends in the middle of it"
            raise DataError(f"{place}: not JSON{cut}") from None
        if "\\ud" in text.lower():  # half a character, perhaps, which no file takes
            line = deep_writable(line)
        try:
            document = _document(line, task, split)
        except ValidationError as error:
            raise DataError(
                f"{place}: not a judged line of this project's ({said(error)})"
            ) from None
        except (KeyError, TypeError, ValueError) as error:
            what = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
            raise DataError(f"{place}: not a judged line of this project's ({what})") from None
        if document.id in found:
            raise DataError(f"{place}: a second line for {document.id!r}, which would count twice")
        found[document.id] = document
    return list(found.values())


def said(error: ValidationError) -> str:
    """The first thing that is wrong, and where."""
    first = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(map(str, first['loc'])) or 'the line'}: {first['msg']}"


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    try:
        with path.open(encoding="utf-8") as file:
            yield from ((number, text) for number, text in enumerate(file, 1) if text.strip())
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 ({error})") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None


def _document(given: Any, task: str, split: str) -> Document:
    line = _LINE.validate_python(given)
    doc = line.doc
    # With several answers to a document each has its own judgement.
    answers = doc.answers or [_ANSWER.validate_python(given["doc"])]
    prbench = answers[0].criteria is not None
    benchmark = PRBENCH if prbench else PLAWBENCH
    described = {"subset": split, **doc.model_dump(include=set(AXES[benchmark]), exclude_none=True)}
    read = tuple(_prbench(a) if prbench else _plawbench(doc, a) for a in answers)
    if any([c.id for c in a.criteria] != [c.id for c in read[0].criteria] for a in read):
        raise ValueError("its answers were graded by different criteria")
    if len({c.id for c in read[0].criteria}) < len(read[0].criteria):
        raise ValueError("two of its criteria have the same id")
    metrics = [name for name in line.metrics if not name.endswith("_stderr")]
    return Document(
        benchmark,
        task,
        doc.id,
        line.doc_hash,
        {name: _score(given, name) for name in metrics},
        {name: str(described[name]) for name in AXES[benchmark] if name in described},
        tuple(message.model_dump() for message in doc.messages),
        read,
    )


def _score(line: Mapping[str, Any], name: str) -> float:
    score = _SCORE.validate_python(line[name])
    if abs(score) > _MOST_SCORE:
        raise ValueError(f"{name}: {score} is no score")
    return score


def _prbench(answer: _Answer) -> Answered:
    if answer.criteria is None:
        raise ValueError("one of its answers has no criteria")
    criteria = tuple(
        Graded(
            c.id,
            c.text,
            c.weight,
            c.category,
            c.met,
            c.explanation,
            c.failure,
            c.contradicts_explanation,
            tuple(vote.model_dump() for vote in c.votes or ()),
        )
        for c in answer.criteria
    )
    return Answered(answer.answer, answer.answer_status, criteria)


def _plawbench(doc: _Doc, answer: _Answer) -> Answered:
    grading = answer.grading
    if grading is None:
        raise ValueError("it has neither criteria nor grading")
    texts = {section.dimension: section.text for section in doc.sections}
    criteria = tuple(
        Graded(
            section.section,
            texts.get(section.section, str(doc.rubric or "")),
            section.points,
            section.section,
            _share(section.awarded, section.points),
            failure=grading.failure,
            contradicts=bool(section.contradicts_breakdown),
            votes=tuple(
                {
                    "judge": vote.judge,
                    "repeat": vote.repeat,
                    "met": _share((vote.awarded or {}).get(section.section), section.points),
                    "explanation": vote.explanation,
                    "failure": vote.failure,
                }
                for vote in grading.votes or ()
            ),
            breakdown=tuple(section.breakdown),
        )
        for section in grading.sections
    )
    return Answered(answer.answer, answer.answer_status, criteria, grading.explanation)


def _share(awarded: float | None, points: float) -> float | None:
    return None if awarded is None or not points else min(awarded / points, 1.0)
