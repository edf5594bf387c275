"""PLawBench (Chinese legal practice): from a row to messages, judge calls and scores.

Pure functions, no I/O. An LLM grades each answer in one call against an expert rubric with
points. Totals always come from the data, never from the judge. Data and protocol:
github.com/skylenage/PLawbench; where this differs from the official script, the README says why.
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from custom_metrics import statistics
from custom_metrics.answer import Answer
from custom_metrics.errors import DataError
from custom_metrics.judge import (
    JudgeCall,
    Outcome,
    Unreadable,
    excerpt,
    object_with,
    strict_object,
)
from custom_metrics.opinions import Opinions
from custom_metrics.prompts import Prompt
from custom_metrics.rubric import Doc, Judgement, Message

SUBSETS = ("case_analysis", "legal_consultation", "plaintiff_statement", "defendant_statement")

SECTIONS = (  # of a case analysis: our name, the rubric's tag, the judge's key
    ("conclusion", "结论得分", "结论"),
    ("fact", "案情简述得分", "案件事实"),
    ("reasoning", "分析过程得分", "推理过程"),
    ("law", "法条依据得分", "法条依据"),
)

# A grading with its breakdown is long. This is what a reply may have unless the settings say.
JUDGE_TOKENS = 8192
# How many questions of a consultation count: what its task prompt asks for at most.
QUESTIONS_JUDGED = "25"

_NAN = float("nan")
_MOST_POINTS = 1_000_000  # rubrics have about 100

# What the two kinds of reply hold, in the order in which the prompts ask for it.
_POINTS_SCHEMA = {"type": "number"}
_SECTION_SCHEMA = strict_object(
    total_points=_POINTS_SCHEMA,
    max_points=_POINTS_SCHEMA,
    breakdown={
        "type": "array",
        "items": strict_object(
            rubric_item={"type": "string"},
            points_awarded=_POINTS_SCHEMA,
            rationale={"type": "string"},
        ),
    },
)
SECTIONS_SCHEMA = strict_object(
    score_details=strict_object(**{key: _SECTION_SCHEMA for _, _, key in SECTIONS})
)
# The analysis that a free reply has before its JSON; without it the judge could not think first.
TOTAL_SCHEMA = strict_object(
    analysis={"type": "string"}, total_points=_POINTS_SCHEMA, max_points=_POINTS_SCHEMA
)


@dataclass(frozen=True)
class Item:
    """One line of the judge's breakdown."""

    item: str
    points: float | None
    rationale: str


@dataclass(frozen=True)
class Grading:
    """What the judge awarded: by section for a case analysis, else under ``total`` alone."""

    awarded: Mapping[str, float]
    breakdown: Mapping[str, tuple[Item, ...]]
    explanation: str

    def contradicts_breakdown(self, section: str) -> bool:
        """Whether the items of a case analysis's section add up to other points than it was given.

        (A ``total``'s items are read out of prose, which proves nothing.)
        """
        points = [item.points for item in self.breakdown.get(section, ())]
        if section == "total" or not points or None in points:
            return False
        return not math.isclose(sum(filter(None, points)), self.awarded[section], abs_tol=0.01)


# --- row → document ------------------------------------------------------------------------


def row_to_doc(row: Mapping[str, Any], split: str, number: int) -> dict[str, Any] | None:
    """A row of any of the shapes as a document, or None for a row of another subset.

    As released: ``label, context, question, rubrics`` (case analysis), ``id, conversation,
    rubrics`` (consultation), ``id, tag, conversation, Rubrics, score`` (drafting). Normalised:
    ``id, task, judge_type, category, context, question, rubrics, max_points``. Raises
    :class:`DataError` that names the field.
    """
    if "max_points" in row or "judge_type" in row:
        return _normalised(row, split)
    identifier = f"{split}-{row.get('id', number)}"
    if split == "case_analysis" and "question" in row and "rubrics" in row:
        sections = _sections(row["rubrics"])
        return {
            "id": identifier,
            "category": _optional(row, "label"),
            "context": _text(row, "context"),
            "question": _text(row, "question"),
            "rubric": _shown(row["rubrics"]),
            "sections": sections,
            "total": sum(section["points"] for section in sections),
            "note": None,
        }
    if split != "case_analysis" and "conversation" in row:
        consultation = split == "legal_consultation"
        rubric = _text(row, "rubrics" if consultation else "Rubrics")
        return {
            "id": identifier,
            "category": _optional(row, "tag"),
            "context": "",
            "question": _text(row, "conversation"),
            "rubric": rubric,
            "sections": [],
            "total": sum_of_marks(rubric) if consultation else _positive(row, "score"),
            "note": _header_note(rubric) if consultation else None,
        }
    raise DataError(
        f"the row has neither the released shape of {split} nor the normalised one with "
        f"'max_points'; its fields are {', '.join(map(str, row))}"
    )


def _normalised(row: Mapping[str, Any], split: str) -> dict[str, Any] | None:
    subset = _text(row, "task")
    if subset not in SUBSETS:
        raise DataError(f"field 'task': {subset!r} is none of {', '.join(SUBSETS)}")
    if subset != split:
        return None
    total = _positive(row, "max_points")
    rubrics = row.get("rubrics")
    sections: list[dict[str, Any]] = []
    marks = total
    if split == "case_analysis":
        if isinstance(rubrics, str):
            try:
                rubrics = json.loads(rubrics)
            except (ValueError, RecursionError) as error:
                raise DataError(f"field 'rubrics': not JSON ({error})") from None
        sections = _sections(rubrics)
        marks = sum(section["points"] for section in sections)
    else:
        _text(row, "rubrics")
        if split == "legal_consultation" and _MARK.search(str(rubrics)):
            marks = sum_of_marks(str(rubrics))
    differs = f"max_points is {total:g} and the marks add up to {marks:g}; max_points is used"
    return {
        "id": _text(row, "id") if isinstance(row.get("id"), str) else f"{split}-{row.get('id')}",
        "category": _optional(row, "category"),
        "context": str(row.get("context") or ""),
        "question": _text(row, "question"),
        "rubric": _shown(rubrics),
        "sections": sections,
        "total": total,
        "note": differs if marks != total else None,
    }


def _shown(rubrics: Any) -> str:
    """A rubric as the judge sees it: text as it is, sections as indented JSON."""
    if isinstance(rubrics, str):
        return rubrics
    return json.dumps(rubrics, ensure_ascii=False, indent=2)


def _sections(rubrics: Any) -> list[dict[str, Any]]:
    """The four sections in the order of :data:`SECTIONS`, each with its points."""
    if not isinstance(rubrics, Sequence) or isinstance(rubrics, str):
        raise DataError("field 'rubrics': a list of sections is needed")
    by_tag: dict[str, dict[str, Any]] = {}
    for number, section in enumerate(rubrics):
        if not isinstance(section, Mapping):
            raise DataError(f"field 'rubrics', section {number}: an object is needed")
        tag, points = str(section.get("tags")), points_of(section.get("points"))
        if points is None:
            raise DataError(
                f"field 'rubrics', section {number} ({tag}): points are a number of 0 or more, "
                f"not {section.get('points')!r}"
            )
        if tag in by_tag:
            raise DataError(f"field 'rubrics': the section {tag} stands there twice")
        by_tag[tag] = {"text": _text(section, "criterion"), "points": points}
    wanted = [tag for _, tag, _ in SECTIONS]
    if set(by_tag) != set(wanted):
        raise DataError(
            f"field 'rubrics': the sections are {', '.join(by_tag)}, and have to be "
            f"{', '.join(wanted)}"
        )
    if not sum(section["points"] for section in by_tag.values()):
        raise DataError("field 'rubrics': no section has any points")
    return [{"dimension": name, **by_tag[tag]} for name, tag, _ in SECTIONS]


_MARK = re.compile(r"[（(]\s*[+＋]\s*(\d+(?:\.\d+)?)\s*分\s*[）)]")
_HEADER = re.compile(r"总分\s*[：:]?\s*(\d+(?:\.\d+)?)\s*分?")


def sum_of_marks(rubric: str) -> float:
    """The total of a rubric's ``（+N分）`` marks, in either parentheses, with or without blanks."""
    marks = [float(mark) for mark in _MARK.findall(rubric)]
    if not sum(marks):
        raise DataError("field 'rubrics': no （+N分） mark in it")
    return sum(marks)


def _header_note(rubric: str) -> str | None:
    total = sum_of_marks(rubric)
    header = _HEADER.search(rubric)
    if header and float(header[1]) != total:
        return (
            f"the rubric's header says {header[1]}, its marks add up to {total:g}; {total:g} it is"
        )
    return None


def points_of(value: Any) -> float | None:
    """A number of points, 0 or more, however it is written; None if it is none.

    ``8``, ``"8"``, ``"7.5分"``, ``"8/10"`` and ``"8分/10分"`` (8 of 10). Booleans, nulls, negative
    numbers and other text are not points.
    """
    if isinstance(value, str):
        match = _POINTS.match(unicodedata.normalize("NFKC", value).strip())
        value = float(match[1]) if match else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        points = float(value)
    except OverflowError:  # an integer of more than 308 digits
        return None
    return points if 0 <= points <= _MOST_POINTS else None


_POINTS = re.compile(r"\+?(\d+(?:\.\d+)?)\s*(?:分\s*)?(?:/\s*\d+(?:\.\d+)?\s*分?)?\Z")


def _text(row: Mapping[str, Any], field: str) -> str:
    value = row.get(field)
    if not isinstance(value, str) or not value.strip():
        raise DataError(f"field {field!r}: a non-blank string is needed, not {value!r}")
    return value


def _optional(row: Mapping[str, Any], field: str) -> str | None:
    return None if row.get(field) is None else str(row[field])


def _positive(row: Mapping[str, Any], field: str) -> float:
    points = points_of(row.get(field))
    if not points:
        raise DataError(f"field {field!r}: a number above 0 is needed, not {row.get(field)!r}")
    return points


# --- document → prompts --------------------------------------------------------------------


def doc_to_messages(doc: Doc, prompt: Prompt | None) -> list[Message]:
    """The task prompt, filled with the case and the question."""
    if prompt is None:
        raise ValueError("a task prompt is needed")
    return prompt.messages(context=doc["context"], question=doc["question"])


def doc_to_judge(
    doc: Doc, messages: Sequence[Message], answer: Answer, prompt: Prompt
) -> list[JudgeCall[Grading]]:
    """One call for the whole rubric."""
    conversation = f"user: {messages[-1]['content']}\n\nassistant: {answer.text}\n\n"
    parts = _parts(doc)

    def write(overlaps: Sequence[float]) -> str:
        points = [o * worth for o, (_, worth) in zip(overlaps, parts, strict=True)]
        return _written(doc, points)

    return [
        JudgeCall(
            messages=lambda: prompt.messages(
                conversation=conversation,
                rubric_item=doc["rubric"],
                score=f"{doc['total']:g}",
                num=QUESTIONS_JUDGED,
            ),
            read=read_sections if doc["sections"] else read_total,
            conversation=doc["id"],
            label=doc["id"],
            answer=answer.text,
            criteria=tuple(text for text, _ in parts),
            write=write,
            max_tokens=JUDGE_TOKENS,
            readable_when_cut=True,
            schema=SECTIONS_SCHEMA if doc["sections"] else TOTAL_SCHEMA,
            combine=partial(mean_grading, allotted=_allotted(doc)),
        )
    ]


def _parts(doc: Doc) -> list[tuple[str, float]]:
    """What the lexical judge compares, with its points: sections, or lines that have a mark."""
    if doc["sections"]:
        return [(section["text"], section["points"]) for section in doc["sections"]]
    marked = [
        (_MARK.sub("", line), sum(float(mark) for mark in _MARK.findall(line)))
        for line in doc["rubric"].splitlines()
        if _MARK.search(line)
    ]
    return marked or [(doc["rubric"], doc["total"])]


def _written(doc: Doc, points: Sequence[float]) -> str:
    """The reply of a judge who awards ``points`` to the parts of :func:`_parts`."""
    rationale = "lexical overlap (a smoke test, not a judgement)"
    if not doc["sections"]:
        return json.dumps({"total_points": sum(points), "note": rationale})
    details = {
        key: {
            "total_points": awarded,
            "breakdown": [{"rubric_item": key, "points_awarded": awarded, "rationale": rationale}],
        }
        for (_, _, key), awarded in zip(SECTIONS, points, strict=True)
    }
    return json.dumps({"score_details": details}, ensure_ascii=False)


# --- reply → grading -----------------------------------------------------------------------

_ANALYSIS_LINE = re.compile(
    r"^\s*[-*•]\s*(要点\s*\d+)\s*[：:]\s*(.*?)(?:[，,;；]?\s*理由(?:为)?\s*[：:]\s*(.*))?$",
    re.MULTILINE,
)
_FIRST_NUMBER = re.compile(r"\d+(?:\.\d+)?")


def read_total(text: str) -> Grading:
    """A grading by total: the last JSON object with ``total_points``, after lines of analysis
    or, in a reply that a schema constrains, with them under ``analysis``.

    Raises :class:`Unreadable` if the points are missing or are none.
    """
    found = object_with(text, "total_points")
    points = points_of(found["total_points"])
    if points is None:
        raise Unreadable(f"total_points is {excerpt(found['total_points'])}, not points")
    analysis = found.get("analysis")
    before = text[: text.rfind("{")].replace("```json", "").strip()
    explanation = analysis if isinstance(analysis, str) else before
    items = tuple(
        Item(match[1], _first_number(match[2]), (match[3] or match[2]).strip())
        for match in _ANALYSIS_LINE.finditer(explanation)
    )
    return Grading({"total": points}, {"total": items}, explanation)


def read_sections(text: str) -> Grading:
    """A grading by sections: the last JSON object with ``score_details``, all four in it.

    Raises :class:`Unreadable` if a section or its points are missing.
    """
    details = object_with(text, "score_details")["score_details"]
    if not isinstance(details, Mapping):
        raise Unreadable("score_details is not an object")
    awarded: dict[str, float] = {}
    breakdown: dict[str, tuple[Item, ...]] = {}
    for name, _, key in SECTIONS:
        section = details.get(key)
        if not isinstance(section, Mapping) or "total_points" not in section:
            raise Unreadable(f"the section {key} has no total_points")
        points = points_of(section["total_points"])
        if points is None:
            raise Unreadable(
                f"{key}: total_points is {excerpt(section['total_points'])}, not points"
            )
        awarded[name] = points
        entries = section.get("breakdown")
        breakdown[name] = tuple(
            Item(
                str(entry.get("rubric_item", "")),
                points_of(entry.get("points_awarded")),
                str(entry.get("rationale", "")),
            )
            for entry in (entries if isinstance(entries, list) else [])
            if isinstance(entry, Mapping)
        )
    return Grading(awarded, breakdown, "")


def _first_number(text: str) -> float | None:
    match = _FIRST_NUMBER.search(text)
    return float(match[0]) if match else None


# --- several gradings → one --------------------------------------------------------------------


def mean_grading(gradings: Sequence[Grading], allotted: Mapping[str, float]) -> Grading:
    """The mean points of each section, each clamped to its allotment first. It has no breakdown:
    each grading has its own."""
    awarded = {
        name: sum(min(grading.awarded[name], points) for grading in gradings) / len(gradings)
        for name, points in allotted.items()
    }
    return Grading(awarded, dict.fromkeys(allotted, ()), "")


def _allotted(doc: Doc) -> dict[str, float]:
    """The points of each section, or the rubric's under ``total``."""
    return {s["dimension"]: s["points"] for s in doc["sections"]} or {"total": doc["total"]}


# --- grading → scores ----------------------------------------------------------------------


def ratio(awarded: float, total: float) -> float:
    """``awarded`` of ``total``, clamped to [0, 1]; NaN of nothing."""
    return min(max(awarded / total, 0.0), 1.0) if total else _NAN


def process_results(doc: Doc, results: Sequence[Judgement]) -> dict[str, Any]:
    """The metrics of one document, and under ``grading`` what the samples file keeps.

    ``acc`` is awarded / total; a case analysis has a ratio for each section too, and its awarded
    points are the sections', each clamped to its allocation (``given`` keeps what the judge wrote,
    and ``points_clamped`` says where that was more). Without a grading the scores are NaN and
    ``acc`` lies between 0 and 1.
    """
    (judgement,) = results
    outcome = judgement.outcomes[0] if judgement.outcomes else None
    grading: Grading | None = outcome.value if outcome else None
    allotted = _allotted(doc)
    zero = judgement.answer.empty or not judgement.excluded
    awarded: dict[str, float] = {}
    if grading is not None:
        awarded = {name: min(grading.awarded[name], points) for name, points in allotted.items()}
    elif zero:
        awarded = dict.fromkeys(allotted, 0.0)
    ratios = {name: ratio(awarded[name], allotted[name]) for name in awarded}
    acc = ratio(sum(awarded.values()), doc["total"]) if awarded else _NAN
    return {
        "acc": acc,
        "acc_low": acc if grading or judgement.answer.empty else 0.0,
        "acc_high": acc if grading or judgement.answer.empty else 1.0,
        **{f"{name}_acc": ratios.get(name, _NAN) for name in allotted if name != "total"},
        "points_clamped": float(
            sum(any(g.awarded[n] > p for n, p in allotted.items()) for g in _gradings(outcome))
        ),
        "judge_coverage": float(bool(awarded)),
        "empty_answers": float(judgement.answer.empty),
        **({"judge_contradictions": _contradictions(outcome)} if doc["sections"] else {}),
        **({"opinions": _opinions(doc, judgement)} if judgement.opinions > 1 else {}),
        "grading": {
            "sections": [
                {
                    "section": name,
                    "awarded": awarded.get(name),
                    "given": grading.awarded[name] if grading else None,
                    "points": points,
                    "contradicts_breakdown": bool(grading and grading.contradicts_breakdown(name)),
                    "breakdown": [asdict(i) for i in grading.breakdown[name]] if grading else [],
                }
                for name, points in allotted.items()
            ],
            "explanation": grading.explanation if grading else None,
            "attempts": outcome.attempts if outcome else 0,
            "failure": outcome.failure if outcome else None,
            **({"votes": _votes(outcome)} if judgement.opinions > 1 else {}),
        },
    }


def _gradings(outcome: Outcome[Grading] | None) -> list[Grading]:
    """Every grading of an answer: each opinion's where there are several."""
    if outcome is None:
        return []
    opinions = [vote.outcome for vote in outcome.votes] or [outcome]
    return [opinion.value for opinion in opinions if opinion.value is not None]


def _contradictions(outcome: Outcome[Grading] | None) -> float:
    """How many sections were given other points than their items add up to."""
    gradings = _gradings(outcome)
    return float(sum(g.contradicts_breakdown(name) for g in gradings for name in g.awarded))


def _votes(outcome: Outcome[Grading] | None) -> list[dict[str, Any]]:
    """Each opinion on an answer, as the samples file keeps it."""
    return [
        {
            "judge": vote.judge,
            "repeat": vote.repeat,
            **_written_grading(vote.outcome.value),
            "failure": vote.outcome.failure,
        }
        for vote in (outcome.votes if outcome else ())
    ]


def _written_grading(grading: Grading | None) -> dict[str, Any]:
    """One opinion's points as it gave them, with its reasons."""
    if grading is None:
        return {"awarded": None, "breakdown": {}, "contradicts_breakdown": [], "explanation": None}
    names = list(grading.awarded)
    return {
        "awarded": dict(grading.awarded),
        "breakdown": {name: [asdict(i) for i in grading.breakdown[name]] for name in names},
        "contradicts_breakdown": [name for name in names if grading.contradicts_breakdown(name)],
        "explanation": grading.explanation,
    }


def _opinions(doc: Doc, judgement: Judgement) -> Opinions:
    """What each opinion alone would have made of the document: each section's share of points."""
    allotted = _allotted(doc)
    if judgement.answer.empty or not judgement.outcomes:
        return Opinions((), (0.0,) * judgement.opinions)
    gradings = [vote.outcome.value for vote in judgement.outcomes[0].votes]
    votes = tuple(
        tuple(_NAN if g is None else ratio(g.awarded[name], points) for g in gradings)
        for name, points in allotted.items()
        if points
    )
    scores = tuple(
        _NAN
        if g is None
        else ratio(sum(min(g.awarded[n], p) for n, p in allotted.items()), doc["total"])
        for g in gradings
    )
    return Opinions(votes, scores)


# --- subsets → overall ---------------------------------------------------------------------

# The authors' weights: consultation, case analysis, and drafting as the plain mean of its two.
OVERALL_WEIGHTS = {
    "legal_consultation": 0.2,
    "case_analysis": 0.5,
    "plaintiff_statement": 0.15,
    "defendant_statement": 0.15,
}


def overall(subsets: Mapping[str, float]) -> float:
    """0.2 × consultation + 0.5 × case analysis + 0.3 × the mean of the two drafting subsets.

    ``subsets`` holds each subset's ``acc``. NaN if one is missing.
    """
    return sum(weight * subsets.get(name, _NAN) for name, weight in OVERALL_WEIGHTS.items())


def group_overall(values: Mapping[str, Mapping[str, Sequence[float]]]) -> float | None:
    """:func:`overall` from the values by subset and metric; None if a subset has none."""
    means = {name: statistics.mean(values.get(name, {}).get("acc", [])) for name in OVERALL_WEIGHTS}
    score = overall(means)
    return None if math.isnan(score) else score


def group_overall_stderr(
    values: Mapping[str, Mapping[str, Sequence[float]]],
) -> float | str | None:
    """Its standard error, the subsets being independent; ``N/A`` with fewer than two documents."""
    if group_overall(values) is None:
        return None
    errors = {name: statistics.mean_stderr(values[name]["acc"]) for name in OVERALL_WEIGHTS}
    if any(isinstance(error, str) for error in errors.values()):
        return "N/A"
    return math.sqrt(sum((OVERALL_WEIGHTS[n] * float(error)) ** 2 for n, error in errors.items()))
