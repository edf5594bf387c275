"""A small PRBench of the tests' own, and a server that plays its model and its judge.

Scores are computed here once more, from the weights and the verdicts that the judge gives, so
that no expected value comes from the product.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stub_server import Received, Reply, content_filtered, verdict

ACCURACY = "Financial Accuracy"
RISK = "Risk & Regulatory Disclosure"
LAW = "Legal Accuracy"
UTILITY = "Practical Utility"

_CLASSES = {
    10: "critically important",
    5: "important",
    2: "slightly important",
    -2: "slightly detrimental",
    -5: "detrimental",
    -10: "critically detrimental",
}
_TAG = re.compile(r"\[([a-z]+-\d+-c\d+)\]")
_TASK = re.compile(r"\(task ([a-z]+-\d+)\)")


@dataclass(frozen=True)
class Item:
    """One criterion: its weight, its category, and whether the judge finds it met."""

    weight: int
    category: str
    met: bool = False


@dataclass(frozen=True)
class Case:
    """One row: an id, the prompts, what stood between them, and the rubric."""

    id: str
    items: tuple[Item, ...]
    prompts: tuple[str, ...] = ("What should the client do?",)
    responses: tuple[str, ...] = ()
    references: Mapping[int, Sequence[str]] = field(default_factory=dict)

    def tag(self, number: int) -> str:
        return f"{self.id}-c{number}"

    @property
    def messages(self) -> list[dict[str, str]]:
        """The chat that the model has to be given."""
        chat = []
        for turn, prompt in enumerate(self.prompts):
            texts = self.references.get(turn, ())
            before = "".join(f"Reference Text {k}:\n{text}\n\n" for k, text in enumerate(texts))
            chat.append({"role": "user", "content": f"{before}(task {self.id}) {prompt}"})
            if turn < len(self.responses):
                chat.append({"role": "assistant", "content": self.responses[turn]})
        return chat

    def row(self) -> dict[str, Any]:
        """The raw row. Every criterion also has a weight that its annotators gave up."""
        row: dict[str, Any] = {
            "task": self.id, "turns": len(self.prompts), "field": "Finance", "topic": "Tests",
            "expert": "Expert", "economic_pathway": "Other", "decision_type": None,
            "canary": "not to be kept",
        }  # fmt: skip
        for turn in range(10):
            inside = turn < len(self.prompts)
            row[f"prompt_{turn}"] = f"(task {self.id}) {self.prompts[turn]}" if inside else None
            row[f"response_{turn}"] = self.responses[turn] if turn < len(self.responses) else None
            row[f"reference_texts_{turn}"] = list(self.references.get(turn, ()))
        row["rubric"] = [self._criterion(number, item) for number, item in enumerate(self.items)]
        return row

    def _criterion(self, number: int, item: Item) -> dict[str, Any]:
        weights: dict[str, int | None] = {
            f"{name.replace(' ', '_')}_weight": None for name in _CLASSES.values()
        }
        weights["slightly_important_weight"] = 1
        weights[f"{_CLASSES[item.weight].replace(' ', '_')}_weight"] = item.weight
        return {
            "id": self.tag(number),
            "title": f"The response does what [{self.tag(number)}] asks.",
            "annotations": {
                "criteria_category": item.category,
                "weight_class": _CLASSES[item.weight],
                **weights,
            },
        }


FINANCE = (
    Case("finance-1", (Item(10, ACCURACY, True), Item(5, UTILITY), Item(-5, RISK, True),
                       Item(5, RISK, True))),
    Case("finance-2", (Item(10, ACCURACY, True), Item(2, UTILITY, True), Item(-10, ACCURACY)),
         prompts=("First?", "Second?", "Third?"), responses=("One.", "Two."),
         references={0: ("Text A", "Text B"), 2: ("Text C",)}),
    Case("finance-3", (Item(5, ACCURACY), Item(5, UTILITY, True), Item(-2, UTILITY, True))),
)  # fmt: skip
# A subset whose mean is below zero: its clipped mean is 0, and counts as less in a pooled one.
LEGAL = (
    Case("legal-1", (Item(10, LAW), Item(-2, LAW, True), Item(2, UTILITY))),
    Case("legal-2", (Item(5, LAW, True), Item(10, UTILITY), Item(-10, UTILITY, True)),
         prompts=("Can she sue?", "And whom?"), responses=("Perhaps.",)),
    Case("legal-3", (Item(10, LAW, True), Item(-10, UTILITY, True))),
)  # fmt: skip


# --- the formulas, once more ---------------------------------------------------------------------


def clipped(items: Sequence[Item]) -> float:
    """Points over the most there are; of one document, so it may be negative."""
    return sum(i.weight for i in items if i.met) / sum(i.weight for i in items if i.weight > 0)


def normalized(items: Sequence[Item]) -> float:
    points = sum(i.weight for i in items if i.met)
    best = sum(i.weight for i in items if i.weight > 0)
    worst = sum(i.weight for i in items if i.weight < 0)
    return (points - worst) / (best - worst)


def mean(values: Iterable[float]) -> float:
    listed = list(values)
    return sum(listed) / len(listed)


def clipped_mean(cases: Iterable[Case]) -> float:
    return max(0.0, mean(clipped(case.items) for case in cases))


def normalized_mean(cases: Iterable[Case]) -> float:
    return mean(normalized(case.items) for case in cases)


def category_mean(cases: Iterable[Case], category: str) -> float:
    """The mean over the cases that can gain points in the category."""
    members = [[item for item in case.items if item.category == category] for case in cases]
    return mean(clipped(items) for items in members if any(item.weight > 0 for item in items))


# --- data and servers ----------------------------------------------------------------------------


def write_data(folder: Path, **splits: Sequence[Case]) -> Path:
    """A folder for ``RUBRIC_DATA_DIR`` with one JSONL file a split."""
    (folder / "prbench").mkdir(parents=True, exist_ok=True)
    for split, cases in splits.items():
        lines = [json.dumps(case.row()) for case in cases]
        (folder / "prbench" / f"{split}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return folder


def write_answers(path: Path, answers: Mapping[str, str | None]) -> Path:
    """A file for ``--model prefilled``."""
    path.write_text(json.dumps(answers), encoding="utf-8")
    return path


def case_of(call: Received) -> str:
    """The id of the case that a call to the model is about."""
    found = _TASK.findall(call.prompt)
    assert found, call.prompt
    return str(found[-1])


def criterion_of(call: Received) -> str:
    """The id of the criterion that a call to the judge is about."""
    found = _TAG.findall(call.prompt)
    assert found, call.prompt
    return str(found[-1])


@dataclass
class World:
    """Answers as the model and verdicts as the judge.

    ``failing`` are the criteria whose calls are refused for good; ``judge_reply`` replaces every
    verdict, ``answers`` the model's answer to a case.
    """

    cases: Sequence[Case] = FINANCE + LEGAL
    answers: dict[str, str | None] = field(default_factory=dict)
    failing: set[str] = field(default_factory=set)
    judge_reply: Reply | None = None

    def respond(self, call: Received) -> Reply:
        if call.model == "model":
            return Reply(self.answer(case_of(call)))
        if self.judge_reply is not None:
            return self.judge_reply
        criterion = criterion_of(call)
        return content_filtered() if criterion in self.failing else Reply(self.verdict(criterion))

    def answer(self, identifier: str) -> str | None:
        return self.answers.get(identifier, f"An answer to {identifier}.")

    def verdict(self, criterion: str) -> str:
        identifier, _, number = criterion.rpartition("-c")
        case = next(case for case in self.cases if case.id == identifier)
        return verdict(case.items[int(number)].met, f"So it is with {criterion}.")
