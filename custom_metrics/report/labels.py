"""Names that people read: axes, subsets, sections, and the columns of the papers' tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from custom_metrics.analysis.documents import PLAWBENCH, PRBENCH

BENCHMARKS = {PRBENCH: "PRBench", PLAWBENCH: "PLawBench"}

# Of documents, besides the rubric's own categories.
AXES = {
    PRBENCH: {
        "topic": "Topic",
        "expert": "Expert or not",
        "turns": "User turns",
        "economic_pathway": "Economic pathway",
        "decision_type": "Decision type",
    },
    PLAWBENCH: {"category": "Category 类别"},
}

SUBSETS = {
    "legal_consultation": "Legal consultation 法律咨询",
    "case_analysis": "Case analysis 案例分析",
    "plaintiff_statement": "Plaintiff's statement 起诉状",
    "defendant_statement": "Defendant's statement 答辩状",
}

SECTIONS = {
    "conclusion": "Conclusion 结论",
    "fact": "Facts 案件事实",
    "reasoning": "Reasoning 推理过程",
    "law": "Statutes 法条依据",
}

# Metrics of a panel of judges, as its results hold them.
AGREEMENT = {
    "judge_split": "Share of split questions, mean over documents",
    "judge_alpha": "Krippendorff's α",
    "judge_sd": "Standard deviation of the score between opinions",
}

STATUSES = {"answered": "", "empty": "empty answer", "cut_in_reasoning": "cut off in its reasoning"}


def category_label(name: str) -> str:
    """A category of PRBench as it is, a section of PLawBench in both languages."""
    return SECTIONS.get(name, "Whole rubric 总分" if name == "total" else name)


Rows = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Board:
    """The columns of a paper's table, each with how it is read from a run's rows."""

    benchmark: str
    title: str
    columns: tuple[tuple[str, Callable[[Rows], float]], ...]
    scale: float
    digits: int


def leaderboards() -> tuple[Board, ...]:
    """Both benchmarks' tables."""
    return _BOARDS


def _cell(task: str, metric: str) -> Callable[[Rows], float]:
    def read(rows: Rows) -> float:
        value = rows.get(task, {}).get(metric)
        return float(value) if isinstance(value, int | float) else math.nan

    return read


def _drafting(rows: Rows) -> float:
    """The plain mean of both statements, as PLawBench counts drafting."""
    parts = [_cell(f"plawbench_{who}_statement", "acc")(rows) for who in ("plaintiff", "defendant")]
    return sum(parts) / 2


_BOARDS = (
    Board(
        PRBENCH,
        "PRBench, clipped score",
        (
            ("Finance", _cell("prbench_finance", "clipped_score")),
            ("Finance Hard", _cell("prbench_finance_hard", "clipped_score")),
            ("Legal", _cell("prbench_legal", "clipped_score")),
            ("Legal Hard", _cell("prbench_legal_hard", "clipped_score")),
        ),
        scale=1,
        digits=3,
    ),
    Board(
        PLAWBENCH,
        "PLawBench, percent",
        (
            ("Overall", _cell("plawbench", "overall")),
            ("Legal consultation", _cell("plawbench_legal_consultation", "acc")),
            ("Case analysis", _cell("plawbench_case_analysis", "acc")),
            ("Conclusion", _cell("plawbench_case_analysis", "conclusion_acc")),
            ("Facts", _cell("plawbench_case_analysis", "fact_acc")),
            ("Reasoning", _cell("plawbench_case_analysis", "reasoning_acc")),
            ("Statutes", _cell("plawbench_case_analysis", "law_acc")),
            ("Drafting", _drafting),
            ("Plaintiff's statement", _cell("plawbench_plaintiff_statement", "acc")),
            ("Defendant's statement", _cell("plawbench_defendant_statement", "acc")),
        ),
        scale=100,
        digits=2,
    ),
)
