"""The recorded run, as a server that plays both the model under test and the judge.

The answers and verdicts are one model's and one judge's; what a run has to make of them was
computed with the official formula.
"""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as parquet
from stub_server import Received, Reply, verdict

CLIPPED = 0.255474
NORMALIZED = 0.310219
CATEGORIES = {
    "category_financial_accuracy": 0.2302,
    "category_practical_utility": 0.2409,
    "category_risk_regulatory_disclosure": 0.2559,
    "category_process_transparency_auditability": 0.2052,
    "category_handling_uncertainty": 0.3335,
    "category_instruction_following": 0.5098,
    "category_supplemental_insight": 0.2003,
}
JUDGE_CALLS = 1578


class RecordedRun:
    """100 single-turn tasks of ``finance_hard``. ``respond`` answers model and judge alike.

    It knows every question and every judge prompt beforehand, from the data and the official
    template filled by hand, so that a prompt which differs by one character gets no answer.
    """

    def __init__(self, data: Path, prompts: Path) -> None:
        rows = parquet.read_table(data / "prbench" / "finance_hard.parquet").to_pylist()
        lines = (data / "prbench" / "recorded_run.jsonl").read_text(encoding="utf-8").splitlines()
        template = (prompts / "prbench_grader.txt").read_text(encoding="utf-8")
        before, rest = template.split("<<conversation>>")
        between, after = rest.split("<<rubric_item>>")
        recorded = {entry["task"]: entry for entry in map(json.loads, lines)}
        self.indices = [i for i, row in enumerate(rows) if row["task"] in recorded]
        self.answers: dict[str, str] = {}
        self.verdicts: dict[str, bool] = {}
        for row in (rows[i] for i in self.indices):
            entry = recorded[row["task"]]
            references = "".join(
                f"Reference Text {k}:\n{text}\n\n"
                for k, text in enumerate(row["reference_texts_0"] or [])
            )
            question = references + row["prompt_0"]
            self.answers[question] = entry["response"]
            conversation = f"user: {question}\nassistant: {entry['response'].strip()}".strip()
            for item in row["rubric"]:
                prompt = before + conversation + between + item["title"] + after
                self.verdicts[prompt] = entry["verdicts"][item["id"]]

    @property
    def samples(self) -> str:
        """The value of ``--samples`` that chooses the recorded tasks."""
        return json.dumps({"prbench_finance_hard": self.indices})

    def respond(self, call: Received) -> Reply:
        if call.model == "model":
            (message,) = call.messages
            return Reply(self.answers[message["content"]])
        return Reply(verdict(self.verdicts[call.prompt]))
