"""The released PLawBench items, as a server that plays both the model and the judge.

Right values are computed here, from the released files and what the judge awards.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from commands import metrics
from stub_server import Received, Reply

SECTIONS = {
    "结论得分": ("结论", "conclusion_acc"),
    "案情简述得分": ("案件事实", "fact_acc"),
    "分析过程得分": ("推理过程", "reasoning_acc"),
    "法条依据得分": ("法条依据", "law_acc"),
}
FILES = {
    "legal_consultation": "public_legal_consultation_18.json",
    "plaintiff_statement": "Plantiffs_Statement.json",
    "defendant_statement": "Defendants_Statement.json",
}
MARK = re.compile(r"[（(]\s*\+\s*(\d+)\s*分\s*[）)]")


def share(text: str, ceiling: float) -> float:
    """A share of the points that depends on nothing but ``text``, in steps of 1/64."""
    return ceiling * (hashlib.sha256(text.encode()).digest()[0] % 65) / 64


class Bench:
    """The released items: for each question its subset, and what our judge awards it."""

    def __init__(self, data: Path) -> None:
        folder = data / "plawbench"
        self.items: list[tuple[str, str, dict[str, float], dict[str, float]]] = []
        text = (folder / "practical_case_analysis_250.jsonl").read_text(encoding="utf-8")
        for row in map(json.loads, text.splitlines()):
            totals = {s["tags"]: float(s["points"]) for s in row["rubrics"]}
            awarded = {
                tag: share(row["question"] + row["context"] + tag, 0.9) * points
                for tag, points in totals.items()
            }
            self.items.append(("case_analysis", self.key(row), totals, awarded))
        for subset, name in FILES.items():
            for row in json.loads((folder / name).read_text(encoding="utf-8")):
                rubric = row.get("rubrics") or row["Rubrics"]
                marks = sum(float(mark) for mark in MARK.findall(rubric))
                total = marks if subset == "legal_consultation" else float(row["score"])
                ceiling = {"legal_consultation": 0.8, "plaintiff_statement": 0.5}.get(subset, 0.3)
                given = share(row["conversation"], ceiling) * total
                self.items.append((subset, row["conversation"], {"": total}, {"": given}))

    @staticmethod
    def key(row: Mapping[str, str]) -> str:
        """What tells a case's prompt: two of them stand in the data twice, word for word."""
        return f"{row['context']}\n\n## 问题\n{row['question']}\n"

    def expected(self) -> dict[str, dict[str, float]]:
        """Means of ratios by subset and metric."""
        ratios: dict[str, dict[str, list[float]]] = {}
        for subset, _, totals, awarded in self.items:
            into = ratios.setdefault(subset, {})
            into.setdefault("acc", []).append(sum(awarded.values()) / sum(totals.values()))
            for tag, (_, metric) in SECTIONS.items():
                if tag in totals:
                    into.setdefault(metric, []).append(awarded[tag] / totals[tag])
        return {
            subset: {metric: statistics.mean(values) for metric, values in of.items()}
            for subset, of in ratios.items()
        }

    def respond(self, call: Received) -> Reply:
        if call.model == "model":
            return Reply(
                "【结论】可以。\n\n【案件事实】略。\n\n\n\n【推理过程】略。\n【法条依据】略。"
            )
        user = call.messages[1]["content"]
        subset, _, totals, awarded = next(item for item in self.items if item[1] in user)
        if subset != "case_analysis":
            body = {"total_points": awarded[""], "max_points": 1}
            return Reply(f"-要点1: 1分，理由为：有。\n```json\n{json.dumps(body)},\n```")
        details = {
            key: {"total_points": awarded[tag], "max_points": totals[tag] * 7, "breakdown": [
                {"rubric_item": tag, "points_awarded": awarded[tag], "rationale": "理由"}]}
            for tag, (key, _) in SECTIONS.items()
        }  # fmt: skip
        return Reply(f"```json\n{json.dumps({'score_details': details}, ensure_ascii=False)}\n```")


def overall(accs: Mapping[str, float]) -> float:
    drafting = (accs["plaintiff_statement"] + accs["defendant_statement"]) / 2
    return 0.2 * accs["legal_consultation"] + 0.5 * accs["case_analysis"] + 0.3 * drafting


def check(found: Mapping[str, Any], expected: Mapping[str, Mapping[str, float]]) -> None:
    for subset, values in expected.items():
        got = metrics(found, f"plawbench_{subset}")
        assert {m: round(got[m], 9) for m in values} == {m: round(v, 9) for m, v in values.items()}
        assert got["judge_coverage"] == 1
        assert "overall" not in got
    group = metrics(found, "plawbench")
    right = overall({subset: values["acc"] for subset, values in expected.items()})
    assert math.isclose(group["overall"], right, rel_tol=1e-12)
    equal = statistics.mean(values["acc"] for values in expected.values())
    assert abs(right - equal) > 0.02  # no other weighting gives it
    assert 0 < group["overall_stderr"] < 0.05
