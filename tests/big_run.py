"""Runs as large as the benchmark, of this project's own words: 1,100 documents with 18,692
criteria, as the harness writes them. ``python tests/big_run.py DIR [SEED …]`` writes one a seed.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from custom_metrics import prbench, statistics
from custom_metrics.answer import Answer
from custom_metrics.judge import Met, Outcome
from custom_metrics.rubric import Judgement

DOCUMENTS, CRITERIA = 1100, 18_692
CATEGORIES = (
    "Financial Accuracy", "Practical Utility", "Handling Uncertainty", "Instruction Following",
    "Risk & Regulatory Disclosure", "Process Transparency & Auditability", "Supplemental Insight",
)  # fmt: skip
TOPICS = ("Corporate Finance", "Tax & Accounting", "Contracts", "Employment", "Insolvency")
WORDS = (
    "the", "rate", "of", "interest", "covers", "a", "lender", "against", "loss", "while", "terms",
    "in", "this", "clause", "bind", "both", "parties", "so", "that", "each", "may", "ask", "for",
    "notice", "before", "payment", "and", "no", "later", "claim", "can", "rest", "on", "what",
    "was", "not", "said", "writing", "about", "cost", "risk", "margin", "tax", "duty", "value",
    "share", "price", "fund", "debt", "asset",
)  # fmt: skip
STAMP = "2026-01-01T00-00-00.000000"
TASK = "prbench_finance"


def write_run(
    folder: Path,
    *,
    seed: int = 0,
    documents: int = DOCUMENTS,
    criteria: int = CRITERIA,
    texts: Sequence[str] = (),
) -> Path:
    """One model's folder below ``folder``, with a results and a samples file.

    The first documents have ``texts``, one each, as answer, question, criterion, reason and topic.
    """
    folder = folder / f"model-{seed}"
    folder.mkdir(parents=True)
    values: dict[str, list[float]] = {}
    with (folder / f"samples_{TASK}_{STAMP}.jsonl").open("w", encoding="utf-8") as out:
        for sample in _samples(seed, documents, criteria, texts):
            for name in sample["metrics"]:
                values.setdefault(name, []).append(sample[name])
            out.write(json.dumps(sample, ensure_ascii=False) + "\n")
    row: dict[str, Any] = {"name": TASK, "alias": TASK, "sample_len": documents}
    for name, column in values.items():
        clip = name.startswith("clipped")
        row[f"{name},none"] = (statistics.clipped_mean if clip else statistics.mean)(column)
        row[f"{name}_stderr,none"] = (
            statistics.clipped_mean_stderr if clip else statistics.mean_stderr
        )(column)
    content = {
        "results": {TASK: row},
        "group_subtasks": {TASK: []},
        "configs": {
            TASK: {
                "task": TASK,
                "test_split": "finance",
                "metadata": {
                    "version": 1.0,
                    "lm_eval_rubrics": "0.1.0",
                    "judge": {"model": "judge", "prompt": "builtin"},
                    "judge_prompt": {"name": "builtin", "user": {"sha256": "0" * 64}},
                    "dataset": {"origin": "made up", "fingerprint": "1" * 64},
                },
            }
        },
        "versions": {TASK: 1.0},
        "n-samples": {TASK: {"original": documents, "effective": documents}},
        "date": 1_767_225_600.0 + seed,
        "model_name": f"model-{seed}",
    }
    (folder / f"results_{STAMP}.json").write_text(json.dumps(content), encoding="utf-8")
    return folder


def changed_run(source: Path, folder: Path, change: Callable[[list[Any]], None]) -> Path:
    """A copy of a model's folder in ``folder``, its samples changed in place."""
    folder.mkdir(parents=True)
    for path in source.iterdir():
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".jsonl":
            found = [json.loads(line) for line in text.split("\n") if line]
            change(found)
            text = "".join(json.dumps(sample) + "\n" for sample in found)
        (folder / path.name).write_text(text, encoding="utf-8")
    return folder


def second_answers(found: list[Any]) -> None:
    """Give every document another answer, which does the opposite of the first."""
    for sample in found:
        doc = sample["doc"]
        first = {name: doc.pop(name) for name in ("answer", "answer_status", "criteria")}
        other = [
            {**c, "met": not c["met"], "explanation": f"Otherwise: {c['explanation']}"}
            for c in first["criteria"]
        ]
        second = {**first, "answer": f"Another *{doc['id']}*", "criteria": other}
        doc["answers"] = [first, second]


def _samples(
    seed: int, documents: int, criteria: int, texts: Sequence[str]
) -> Iterator[dict[str, Any]]:
    fixed, own = random.Random(0), random.Random(seed + 1)  # the same data, other answers
    metric_names = [
        "clipped_score", "normalized_score", "clipped_score_low", "clipped_score_high",
        *(f"category_{prbench.slug(c)}" for c in CATEGORIES), "judge_coverage", "empty_answers",
    ]  # fmt: skip
    for number in range(documents):
        count = criteria // documents + (number < criteria % documents)
        turns = fixed.choice([1, 1, 1, 2, 3])
        roles = [("user", "assistant")[k % 2] for k in range(2 * turns - 1)]
        doc: dict[str, Any] = {
            "id": f"made-up-{number:04}",
            "task": f"made-up-{number:04}",
            "messages": [{"role": r, "content": _prose(fixed, 200, 400)} for r in roles],
            "rubric": [
                {
                    "id": f"made-up-{number:04}-c{k:02}",
                    "text": f"The response says {_prose(fixed, 12, 35)}",
                    "weight": fixed.choice([10, 8, 7, 5, 5, 3, 2, 1, -2, -8]) if k else 10,
                    "category": fixed.choice(CATEGORIES),
                }
                for k in range(count)
            ],
            "field": "Finance",
            "topic": fixed.choice(TOPICS),
            "expert": fixed.choice(["Expert", "Novice"]),
            "economic_pathway": fixed.choice(["Value Creation", "Risk & Resilience", "Other"]),
            "decision_type": fixed.choice(["Planning", "Compliance", "Capital & Funding"]),
            "turns": turns,
            "note": None,
        }
        text = texts[number] if number < len(texts) else None
        if text is not None:
            doc["messages"][-1]["content"] = doc["rubric"][0]["text"] = doc["topic"] = text
        skill = min(0.95, max(0.02, own.gauss(0.45, 0.2)))
        outcomes = tuple(
            Outcome(value=Met(own.random() < skill, _prose(own, 25, 60)), attempts=1)
            for _ in range(count)
        )
        answer = Answer(_markdown(own) if text is None else text, "answered")
        if text is not None:
            outcomes = (Outcome(value=Met(True, text), attempts=1), *outcomes[1:])
        found = prbench.process_results(doc, [Judgement(answer, outcomes)])
        scores = {name: found.get(name, float("nan")) for name in metric_names}
        doc.update(criteria=found["criteria"], answer=answer.text, answer_status=answer.status,
                   judge={"model": "judge"}, judge_prompt={"name": "builtin"},
                   task_version=1.0)  # fmt: skip
        yield {
            "doc_id": number, "doc": doc, "target": "", "arguments": {},
            "resps": [[answer.text]], "filtered_resps": [answer.text], "filter": "none",
            "metrics": metric_names, "doc_hash": f"{number:064}", "prompt_hash": "0" * 64,
            "target_hash": "0" * 64, **scores,
        }  # fmt: skip


def _prose(source: random.Random, low: int, high: int) -> str:
    words = source.choices(WORDS, k=source.randint(low, high))
    words[::17] = [word.capitalize() + "." for word in words[::17]]
    return " ".join(words)


def _markdown(source: random.Random) -> str:
    parts = []
    for k in range(source.randint(3, 7)):
        parts.append(f"## {k + 1}. {_prose(source, 3, 6)}\n\n{_prose(source, 60, 140)}")
        parts.append(
            "\n".join(f"- **{_prose(source, 1, 2)}** {_prose(source, 8, 20)}" for _ in "123")
        )
    return "\n\n".join(parts)


if __name__ == "__main__":
    for given in sys.argv[2:] or ["0"]:
        print(write_run(Path(sys.argv[1]), seed=int(given)))
