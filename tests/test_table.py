"""The table of verdicts, as ``report --csv --parquet`` writes it, read back by other programs."""

from __future__ import annotations

import csv
import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from big_run import changed_run, second_answers, write_run
from hostile import TEXTS
from rows import clipped, clipped_mean
from two_runs import CASES, make_run

import lm_eval_tasks
from custom_metrics.analysis.results import read_run
from custom_metrics.cli import main

csv.field_size_limit(1_000_000)  # one of the texts has 200,000 characters
README = Path(__file__).resolve().parents[1] / "README.md"


def exported(folder: Path, out: Path) -> tuple[list[dict[str, str]], list[dict[str, Any]]]:
    """The rows of both files."""
    table, parquet = out / "verdicts.csv", out / "verdicts.parquet"
    assert main(["report", str(folder), "-o", str(out / "r.html"), "--csv", str(table),
                 "--parquet", str(parquet)]) == 0  # fmt: skip
    with table.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file)), pyarrow.parquet.read_table(parquet).to_pylist()


def text(value: Any) -> str:
    return "" if value is None else str(value)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("run"), "first")


def test_every_verdict_is_a_row_with_the_columns_of_the_readme(run: Path, tmp_path: Path) -> None:
    by_csv, by_parquet = exported(run, tmp_path)
    documented = README.read_text(encoding="utf-8").partition("| columns | |\n")[2].split("\n\n")[0]
    names = re.findall(r"`([a-z_]+)`", "".join(x.split("|")[1] for x in documented.splitlines()))
    assert list(by_csv[0]) == list(by_parquet[0]) == names
    assert [{k: text(v) for k, v in row.items()} for row in by_parquet] == by_csv
    judged = {
        case.tag(number): (item.weight, float(item.met), case)
        for case in CASES
        for number, item in enumerate(case.items)
    }
    assert {row["criterion"] for row in by_parquet} == judged.keys()
    for row in by_parquet:
        weight, met, case = judged[row["criterion"]]
        assert (row["weight"], row["met"]) == (weight, met)
        assert row["document"] == case.id
        assert row["turns"] == len(case.prompts)
        assert row["score"] == pytest.approx(clipped(case.items))
        assert (row["benchmark"], row["judge"], row["run"]) == ("prbench", "judge", "first")
        assert (row["answer"], row["answer_status"], row["opinions"]) == (0, "answered", None)


def test_the_score_can_be_computed_from_it(run: Path, tmp_path: Path) -> None:
    _, rows = exported(run, tmp_path)
    points: dict[str, float] = defaultdict(float)
    best: dict[str, float] = defaultdict(float)
    for row in rows:
        points[row["document"]] += row["weight"] * row["met"]
        best[row["document"]] += max(0, row["weight"])
    score = max(0, sum(points[name] / best[name] for name in best) / len(best))
    assert score == pytest.approx(clipped_mean(CASES))
    assert score == pytest.approx(read_run(str(run)).rows["prbench"]["clipped_score"])


def test_points_of_plawbench(tmp_path: Path) -> None:
    answers = Path(lm_eval_tasks.path()) / "plawbench" / "sample_answers" / "middling.json"
    assert main(["run", "--model", "prefilled", "--model_args", f"path={answers}",
                 "--tasks", "plawbench_sample", "--metadata", '{"task_prompt": "builtin"}',
                 "--output_path", str(tmp_path / "out"), "--log_samples",
                 "--judge", "backend=lexical", "prompt=builtin"]) == 0  # fmt: skip
    _, rows = exported(tmp_path / "out", tmp_path)
    found = read_run(str(tmp_path / "out")).rows
    by_task: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(lambda: [0, 0]))
    for row in rows:
        assert row["subset"]
        assert row["case_category"]
        assert row["topic"] is None
        total = by_task[row["task"]][row["document"]]
        total[0] += row["weight"] * row["met"]
        total[1] += row["weight"]
    for task, documents in by_task.items():
        mean = sum(got / most for got, most in documents.values()) / len(documents)
        assert mean == pytest.approx(found[task]["acc"]), task


def test_several_answers_and_opinions(tmp_path: Path) -> None:
    def change(found: list[Any]) -> None:
        second_answers(found)
        for sample in found:
            for answer in sample["doc"]["answers"]:
                votes = [True, None, False]
                answer["criteria"][0]["votes"] = [
                    {"judge": "a", "repeat": k, "met": met, "explanation": None, "failure": None}
                    for k, met in enumerate(votes)
                ]

    whole = write_run(tmp_path / "a", documents=3, criteria=9)
    _, rows = exported(changed_run(whole, tmp_path / "b" / "model-0", change), tmp_path)
    assert len(rows) == 18
    assert {row["answer"] for row in rows} == {0, 1}
    voted = [row for row in rows if row["opinions"] is not None]
    assert len(voted) == 6
    assert {(row["opinions"], row["opinions_met"]) for row in voted} == {(2, 0.5)}


def test_hostile_texts_survive_as_they_are(tmp_path: Path) -> None:
    texts = [*TEXTS, '=1+1"\r\n,;', "a\x00b", "\u2028", "-2+3"]
    whole = write_run(tmp_path / "a", documents=len(texts), criteria=len(texts), texts=texts)
    by_csv, by_parquet = exported(whole, tmp_path)
    (samples,) = whole.glob("samples_*")
    written = [
        json.loads(line)["doc"]["criteria"][0]["explanation"]
        for line in samples.read_text(encoding="utf-8").split("\n")
        if line
    ]
    for rows in (by_csv, by_parquet):
        got = [row["explanation"] for row in rows]
        for one, its in zip(got, written, strict=True):
            # Half a character is none in UTF-8; all else is as it was.
            assert one == "".join("\ufffd" if "\ud800" <= c <= "\udfff" else c for c in its)


def test_a_file_that_cannot_be_written_leaves_the_old_one(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = tmp_path / "folder"
    old.mkdir()
    for flag in ("--csv", "--parquet", "-o"):
        assert main(["report", str(run), "-o", str(tmp_path / "r.html"), flag, str(old)]) == 2
        assert f"{old}: cannot be written" in capsys.readouterr().err
    assert main(["report", str(run), "-o", str(tmp_path / "r.html"),
                 "--csv", str(tmp_path / "r.html")]) == 2  # fmt: skip
    assert "files of their own" in capsys.readouterr().err
    assert not list(tmp_path.glob("*.part"))
    assert not list(old.iterdir())
