"""Weights & Biases and Trackio, offline: what they logged of our runs.

Run by ``.ci/run`` with the extra ``[loggers]``; skipped where one of them is absent. The harness
swallows what its loggers raise, so what they wrote is read back.
"""

from __future__ import annotations

import json
import math
import sqlite3
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("wandb", reason="the tests of the harness's loggers need wandb ([loggers])")
pytest.importorskip("trackio", reason="the tests of the harness's loggers need trackio ([loggers])")

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from commands import command, only, results, samples

import lm_eval_tasks

ANSWERS = {"prbench_sample": "prbench", "plawbench_sample": "plawbench"}


@pytest.fixture(scope="module", params=list(ANSWERS))
def logged(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that was logged to both; the weak answers have an empty one."""
    task, folder = request.param, tmp_path_factory.mktemp("logged")
    answers = Path(lm_eval_tasks.path()) / ANSWERS[task] / "sample_answers" / "weak.json"
    given = json.loads(answers.read_text(encoding="utf-8"))
    given[next(iter(given))] = ""
    changed = folder / "answers.json"
    changed.write_text(json.dumps(given, ensure_ascii=False), encoding="utf-8")
    done = command(
        "lm-eval-rubrics", "run", "--model", "prefilled", "--model_args", f"path={changed}",
        "--tasks", task, "--metadata", '{"task_prompt": "builtin"}',
        "--judge", "backend=lexical", "prompt=builtin",
        "--output_path", str(folder / "out"), "--log_samples",
        "--wandb_args", "project=rubrics,mode=offline", "--trackio_args", "project=rubrics",
        environment={
            "WANDB_DIR": str(folder), "WANDB_CACHE_DIR": str(folder / "wandb-cache"),
            "WANDB_DATA_DIR": str(folder / "wandb-data"), "WANDB_SILENT": "true",
            "TRACKIO_DIR": str(folder / "trackio"), "HF_HUB_OFFLINE": "1",
            "RUBRIC_CACHE_DIR": str(folder / "cache"), "HF_HOME": str(folder / "hf"),
        },
    )  # fmt: skip
    assert done.code == 0, done.text
    assert "logging to" not in done.text.lower(), done.text  # "… failed due to"
    return folder


def numbers(folder: Path) -> dict[tuple[str, str], float]:
    """Every metric of every task and group in the results file, errors left out."""
    return {
        (name, key.removesuffix(",none")): value
        for name, row in results(folder / "out")["results"].items()
        for key, value in row.items()
        if key.endswith(",none") and "_stderr" not in key
    }


def tasks(folder: Path) -> list[str]:
    return list(results(folder / "out")["configs"])


def table(folder: Path, name: str) -> list[dict[str, Any]]:
    """A table that W&B has."""
    (path,) = (p for p in folder.glob("wandb/offline-run-*/files/media/table/**/*.json")
               if p.name.startswith(f"{name}_"))  # fmt: skip
    content = json.loads(path.read_text(encoding="utf-8"))
    return [dict(zip(content["columns"], row, strict=True)) for row in content["data"]]


def same(a: Any, b: Any) -> bool:
    a, b = (math.nan if x in (None, "NaN", "nan") else float(x) for x in (a, b))
    return a == b or (a != a and b != b)


def test_wandb_has_every_metric(logged: Path) -> None:
    rows = {(r["Tasks"], r["Metric"]): r["Value"] for r in table(logged, "eval_results")}
    groups = results(logged / "out").get("groups")
    if groups:
        found = table(logged, "group_eval_results")
        rows |= {(r["Groups"], r["Metric"]): r["Value"] for r in found}
    expected = numbers(logged)
    assert len(expected) > 5
    for key, value in expected.items():
        assert same(rows[key], value), key


def test_wandb_has_every_document(logged: Path) -> None:
    for task in tasks(logged):
        lines = samples(logged / "out", task)
        rows = table(logged, f"{task}_eval_results")
        assert [row["id"] for row in rows] == [line["doc_id"] for line in lines]
        for row, line in zip(rows, lines, strict=True):
            assert row["raw_predictions"] == line["resps"][0][0]
            for metric in line["metrics"]:
                assert same(row[metric], line[metric]), (task, metric)


def test_trackio_has_every_metric_and_document(logged: Path) -> None:
    with sqlite3.connect(only(logged / "trackio", "rubrics.db")) as connection:
        found: dict[str, Any] = {}
        for (content,) in connection.execute("SELECT metrics FROM metrics"):
            found |= json.loads(content)
        traces = [row[0] for row in connection.execute("SELECT count(*) FROM traces")]
    for (name, metric), value in numbers(logged).items():
        if value == value:  # Trackio has no NaN
            assert same(found[f"{name}/{metric}"], value), (name, metric)
    assert traces == [sum(len(samples(logged / "out", task)) for task in tasks(logged))]
