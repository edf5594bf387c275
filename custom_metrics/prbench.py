"""PRBench (arXiv 2511.11562): from a raw row to messages, judge calls and scores.

Pure functions, no I/O. Data: ``ScaleAI/PRBench`` on the Hub. Protocol: the paper and
github.com/scaleapi/PRBench; where this differs from the official script, the README says why.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from custom_metrics.answer import Answer
from custom_metrics.errors import DataError
from custom_metrics.judge import MET_SCHEMA, JudgeCall, Met, Outcome, majority, read_met, write_met
from custom_metrics.opinions import Opinions
from custom_metrics.prompts import Builtin, Official, Prompt, Specs
from custom_metrics.rubric import Criterion, Doc, Judgement, Message

_GRADER = Official(
    repositories=("scaleapi/PRBench",),
    commit="cc0152a6e5c7b401b35c86d17fa1b78de01b4d17",
    path="constants.py",
    constant="GRADER_TEMPLATE",
    file_name="prbench_grader.txt",
    sha256="0821305c3d82d01fe4e8cc4e98c78761b71416a5c221d07527e97a74ec488708",
)
JUDGE_PROMPTS: Specs = {
    "official": {"user": (_GRADER,)},
    "builtin": {"user": (Builtin("prbench_grader.jinja"),)},
}

_KEPT = ("field", "topic", "expert", "economic_pathway", "decision_type")
_NAN = float("nan")
_LARGEST_WEIGHT = 1_000_000  # the data's are from -10 to 10; more is a slip, and overflows


# --- row → document ------------------------------------------------------------------------


def row_to_doc(row: Mapping[str, Any], _split: str, _number: int) -> dict[str, Any]:
    """What is kept of a row: its conversation, its rubric and the fields that describe it.

    Raises :class:`DataError` that names the field if the row is not what the data set describes.
    """
    messages = list(_messages(row))
    criteria = [_criterion(raw, number) for number, raw in enumerate(_list(row, "rubric"))]
    if not criteria:
        raise DataError("field 'rubric': no criteria")
    unscored = not any(criterion.weight > 0 for criterion in criteria)
    return {
        "id": _text(row, "task"),
        "task": _text(row, "task"),
        "messages": messages,
        "rubric": [asdict(criterion) for criterion in criteria],
        **{name: None if row.get(name) is None else str(row[name]) for name in _KEPT},
        "turns": sum(message["role"] == "user" for message in messages),
        "note": "no criterion has a positive weight, so it has no clipped score" * unscored or None,
    }


def _messages(row: Mapping[str, Any]) -> Iterator[Message]:
    """The conversation: for each turn the reference texts and the prompt, then the response."""
    present = sorted(
        int(match[1])
        for field, value in row.items()
        if (match := _PROMPT_FIELD.fullmatch(str(field))) and value is not None
    )
    turns = present[-1] + 1 if present else 1
    for turn in range(turns):
        _text(row, f"prompt_{turn}")  # no gap: a conversation that ends early is another one
        texts = row.get(f"reference_texts_{turn}")
        texts = [] if texts is None else texts
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise DataError(f"field 'reference_texts_{turn}': a list of strings is needed")
        references = "".join(f"Reference Text {k}:\n{text}\n\n" for k, text in enumerate(texts))
        yield {"role": "user", "content": references + row[f"prompt_{turn}"]}
        response = row.get(f"response_{turn}")
        # The last prompt is the one to be answered; what may stand beside it is not the model's.
        if turn < turns - 1 and _is_text(response):
            yield {"role": "assistant", "content": str(response)}


_PROMPT_FIELD = re.compile(r"prompt_(\d+)")


def _criterion(raw: Any, number: int) -> Criterion:
    place = f"field 'rubric', criterion {number}"
    if not isinstance(raw, Mapping) or not isinstance(raw.get("annotations"), Mapping):
        raise DataError(f"{place}: an object with 'id', 'title' and 'annotations' is needed")
    annotations = raw["annotations"]
    try:
        return Criterion(
            id=_text(raw, "id"),
            text=_text(raw, "title"),
            weight=_weight(annotations),
            category=_text(annotations, "criteria_category"),
        )
    except DataError as error:
        raise DataError(f"{place} (id {raw.get('id')!r}): {error}") from None


def _weight(annotations: Mapping[str, Any]) -> int:
    """The weight that ``weight_class`` names; other ``*_weight`` fields are earlier opinions."""
    weight_class = _text(annotations, "weight_class")
    field = weight_class.replace(" ", "_") + "_weight"
    if field not in annotations:
        known = sorted(name for name in annotations if name.endswith("_weight"))
        raise DataError(
            f"weight_class {weight_class!r} has no field {field!r}; known: {', '.join(known)}"
        )
    weight = annotations[field]
    number = isinstance(weight, int | float) and not isinstance(weight, bool)
    if not number or not abs(weight) <= _LARGEST_WEIGHT or weight != int(weight):
        raise DataError(
            f"{field!r} is the weight by weight_class, and not an integer from "
            f"-{_LARGEST_WEIGHT} to {_LARGEST_WEIGHT}: {weight!r:.40}"
        )
    return int(weight)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _text(row: Mapping[str, Any], field: str) -> str:
    if not _is_text(row.get(field)):
        raise DataError(f"field {field!r}: a non-blank string is needed, not {row.get(field)!r}")
    return str(row[field])


def _list(row: Mapping[str, Any], field: str) -> Sequence[Any]:
    value = row.get(field)
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise DataError(f"field {field!r}: a list is needed, not {type(value).__name__}")
    return value


# --- document → prompts --------------------------------------------------------------------


def doc_to_messages(doc: Doc, _prompt: Prompt | None) -> list[Message]:
    """The chat that the model under test is given; this benchmark has no task prompt."""
    return list(doc["messages"])


def render_conversation(messages: Sequence[Message]) -> str:
    """``role: content`` lines, as the official grader is shown a conversation."""
    return "\n".join(f"{m['role']}: {m['content']}" for m in messages).strip()


def doc_to_judge(
    doc: Doc, messages: Sequence[Message], answer: Answer, prompt: Prompt
) -> list[JudgeCall[Met]]:
    """One call a criterion; all of them share the conversation."""
    conversation = render_conversation([*messages, {"role": "assistant", "content": answer.text}])

    def call(criterion: Criterion) -> JudgeCall[Met]:
        return JudgeCall(
            messages=lambda: prompt.messages(conversation=conversation, rubric_item=criterion.text),
            read=read_met,
            conversation=str(doc["id"]),
            label=criterion.id,
            answer=answer.text,
            criteria=(criterion.text,),
            write=write_met,
            schema=MET_SCHEMA,
            combine=majority,
        )

    return [call(Criterion(**criterion)) for criterion in doc["rubric"]]


# --- verdicts → scores ---------------------------------------------------------------------


def clipped(criteria: Sequence[Criterion], met: Sequence[float]) -> float:
    """Σ w·m / Σ(w > 0), not yet clipped: only a split's mean is. NaN without positive weight."""
    best = sum(c.weight for c in criteria if c.weight > 0)
    return _points(criteria, met) / best if best else _NAN


def normalized(criteria: Sequence[Criterion], met: Sequence[float]) -> float:
    """(Σ w·m − Σ(w < 0)) / (Σ(w > 0) − Σ(w < 0)), in [0, 1]. NaN if every weight is zero."""
    best = sum(c.weight for c in criteria if c.weight > 0)
    worst = sum(c.weight for c in criteria if c.weight < 0)
    return (_points(criteria, met) - worst) / (best - worst) if best != worst else _NAN


def by_category(criteria: Sequence[Criterion], met: Sequence[float]) -> dict[str, float]:
    """:func:`clipped` within each category (its :func:`slug`) that has a positive weight.

    This is HealthBench's formula; PRBench's paper gives none for its categories.
    """
    pairs: dict[str, list[tuple[Criterion, float]]] = {}
    for criterion, verdict in zip(criteria, met, strict=True):
        pairs.setdefault(slug(criterion.category), []).append((criterion, verdict))
    scores = {
        category: clipped([c for c, _ in members], [m for _, m in members])
        for category, members in pairs.items()
    }
    return {category: score for category, score in scores.items() if score == score}


def _points(criteria: Sequence[Criterion], met: Sequence[float]) -> float:
    return sum(c.weight * m for c, m in zip(criteria, met, strict=True))


def slug(category: str) -> str:
    """``Risk & Regulatory Disclosure`` → ``risk_regulatory_disclosure``."""
    return re.sub(r"\W+", "_", category.lower()).strip("_")


def process_results(doc: Doc, results: Sequence[Judgement]) -> dict[str, Any]:
    """The metrics of one document, and under ``criteria`` what the samples file keeps.

    An excluded document has NaN for every score, and bounds between which its ``clipped`` lies,
    whatever the missing verdicts would have been.
    """
    (judgement,) = results
    criteria = [Criterion(**criterion) for criterion in doc["rubric"]]
    outcomes = judgement.outcomes or (Outcome(value=Met(False, ""), attempts=0),) * len(criteria)
    met = [None if o.value is None else o.value.met for o in outcomes]
    known = [float(m or 0) for m in met]
    worst = [float(c.weight < 0 if m is None else m) for c, m in zip(criteria, met, strict=True)]
    best = [float(c.weight > 0 if m is None else m) for c, m in zip(criteria, met, strict=True)]
    excluded = judgement.excluded
    if judgement.failed_is_unmet and not excluded:
        met = [bool(m) for m in met]
    categories = {} if excluded else by_category(criteria, known)
    explained = [
        verdict
        for outcome in judgement.outcomes
        for o in ([vote.outcome for vote in outcome.votes] or [outcome])
        if (verdict := o.value) is not None
    ]
    return {
        "clipped_score": _NAN if excluded else clipped(criteria, known),
        "normalized_score": _NAN if excluded else normalized(criteria, known),
        "clipped_score_low": clipped(criteria, worst),
        "clipped_score_high": clipped(criteria, best),
        **{f"category_{name}": score for name, score in categories.items()},
        "judge_coverage": float(not excluded),
        "empty_answers": float(judgement.answer.empty),
        "judge_contradictions": float(sum(verdict.contradictory for verdict in explained)),
        **({"opinions": _opinions(criteria, judgement)} if judgement.opinions > 1 else {}),
        "criteria": [
            {
                **asdict(criterion),
                "met": verdict,
                "explanation": outcome.value.explanation if outcome.value else None,
                "contradicts_explanation": bool(outcome.value and outcome.value.contradictory),
                "attempts": outcome.attempts,
                "failure": outcome.failure,
                **({"votes": _votes(outcome)} if judgement.opinions > 1 else {}),
            }
            for criterion, outcome, verdict in zip(criteria, outcomes, met, strict=True)
        ],
    }


def _votes(outcome: Outcome[Met]) -> list[dict[str, Any]]:
    """Each opinion on a criterion, as the samples file keeps it."""
    return [
        {
            "judge": vote.judge,
            "repeat": vote.repeat,
            "met": verdict.met if (verdict := vote.outcome.value) else None,
            "explanation": verdict.explanation if verdict else None,
            "contradicts_explanation": bool(verdict and verdict.contradictory),
            "failure": vote.outcome.failure,
        }
        for vote in outcome.votes
    ]


def _opinions(criteria: Sequence[Criterion], judgement: Judgement) -> Opinions:
    """What each opinion alone would have made of the document: 1 for met, 0 for unmet."""
    if judgement.answer.empty:
        return Opinions((), (clipped(criteria, [0.0] * len(criteria)),) * judgement.opinions)
    votes = tuple(
        tuple(float(v.outcome.value.met) if v.outcome.value else _NAN for v in outcome.votes)
        for outcome in judgement.outcomes
    )
    return Opinions(votes, tuple(clipped(criteria, met) for met in zip(*votes, strict=True)))


def metric_names(docs: Sequence[Doc]) -> list[str]:
    """The names that ``category_*`` in the YAML stands for, from all documents of the split."""
    categories = {criterion["category"] for doc in docs for criterion in doc["rubric"]}
    return sorted(f"category_{slug(category)}" for category in categories)
