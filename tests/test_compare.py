"""``lm-eval-rubrics compare`` over real runs; right values from the verdicts that were set."""

from __future__ import annotations

import itertools
import json
import math
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rows import (
    ACCURACY,
    FINANCE,
    LEGAL,
    UTILITY,
    Case,
    category_mean,
    clipped,
    clipped_mean,
    normalized,
    normalized_mean,
)
from scipy import stats
from two_runs import CASES, OTHER_CASES, make_run

from custom_metrics.analysis.results import read_run
from custom_metrics.cli import main

OTHER_FINANCE, OTHER_LEGAL = OTHER_CASES[: len(FINANCE)], OTHER_CASES[len(FINANCE) :]


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("a"), "first")


@pytest.fixture(scope="module")
def second(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("b"), "second")


Said = Callable[..., Any]
MEANS = {"clipped_score": clipped_mean, "normalized_score": normalized_mean}


@pytest.fixture
def compared(capsys: pytest.CaptureFixture[str]) -> Said:
    def run(a: Path, b: Path, *more: str) -> Any:
        capsys.readouterr()
        assert main(["compare", str(a), str(b), "--json", *more]) == 0
        return json.loads(capsys.readouterr().out)

    return run


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Said:
    def run(a: Path, b: Path) -> str:
        capsys.readouterr()
        assert main(["compare", str(a), str(b)]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        return captured.err

    return run


def line(found: Any, task: str, metric: str, value: str | None = None) -> dict[str, Any]:
    (it,) = (
        x for x in found["lines"]
        if (x["task"], x["metric"], x["value"]) == (task, metric, value)
    )  # fmt: skip
    return dict(it)


def exact_interval(changes: Sequence[float]) -> tuple[float, float]:
    """Of all the n to the n draws, at the shares of Hesterberg's expanded percentile interval."""
    n = len(changes)
    means = np.array([np.mean(drawn) for drawn in itertools.product(changes, repeat=n)])
    reach = math.sqrt(n / (n - 1)) * stats.t.ppf(0.975, n - 1)
    outside = stats.norm.cdf(-reach)
    low, high = np.quantile(means, [outside, 1 - outside])
    return float(low), float(high)


# --- the numbers ---------------------------------------------------------------------------------


def test_scores_and_differences(first: Path, second: Path, compared: Said) -> None:
    found = compared(first, second)
    suites: dict[str, tuple[Sequence[Case], Sequence[Case]]] = {
        "prbench": (CASES, OTHER_CASES),
        "prbench_finance": (FINANCE, OTHER_FINANCE),
        "prbench_legal": (LEGAL, OTHER_LEGAL),
    }
    results = [read_run(str(folder)).rows for folder in (first, second)]
    for task, (a, b) in suites.items():
        for metric, mean in (
            ("clipped_score", clipped_mean),
            ("normalized_score", normalized_mean),
        ):
            it = line(found, task, metric)
            assert it["first"] == pytest.approx(mean(a), abs=1e-12)
            assert it["second"] == pytest.approx(mean(b), abs=1e-12)
            assert it["difference"] == pytest.approx(mean(b) - mean(a), abs=1e-12)
            # And what the harness printed.
            theirs = [rows[task][metric] for rows in results]
            assert [it["first"], it["second"]] == pytest.approx(theirs, abs=1e-12)
        moves = [clipped(y.items) - clipped(x.items) for x, y in zip(a, b, strict=True)]
        it = line(found, task, "clipped_score")
        assert it["wins"] == sum(move > 0 for move in moves)
        assert it["losses"] == sum(move < 0 for move in moves)
        assert it["ties"] == sum(move == 0 for move in moves)
        assert it["moved"] == it["wins"] + it["losses"]
        assert it["documents"] == len(a)
    assert clipped_mean(LEGAL) == 0  # below zero on average, which is clipped
    overall = line(found, "prbench", "clipped_score")
    assert (overall["wins"], overall["ties"], overall["losses"]) == (3, 1, 2)
    assert found["first"]["label"] == "first"
    assert found["differing"] == []
    endpoint, _ = found["notes"]  # a server of one's own may be elsewhere the next day
    assert endpoint.startswith("judge.endpoint: http://127.0.0.1:")


def test_categories(first: Path, second: Path, compared: Said) -> None:
    found = compared(first, second)
    for name, metric in ((ACCURACY, "financial_accuracy"), (UTILITY, "practical_utility")):
        it = line(found, "prbench", f"category_{metric}", name)
        assert it["axis"] == "rubric category"
        assert it["first"] == pytest.approx(category_mean(CASES, name), abs=1e-12)
        assert it["second"] == pytest.approx(category_mean(OTHER_CASES, name), abs=1e-12)
    turns = {x["value"] for x in found["lines"] if x["axis"] == "turns"}
    assert turns == {"1", "2", "3"}
    one = line(found, "prbench", "clipped_score", "1")
    singles = [(a, b) for a, b in zip(CASES, OTHER_CASES, strict=True) if len(a.prompts) == 1]
    assert one["documents"] == len(singles)
    assert one["first"] == pytest.approx(clipped_mean(a for a, _ in singles))
    assert one["second"] == pytest.approx(clipped_mean(b for _, b in singles))
    # A group's documents are shown by what they are, not those of its members once more.
    assert {x["task"] for x in found["lines"] if x["axis"] == "turns"} == {"prbench"}


def test_the_interval_is_that_of_all_draws(first: Path, second: Path, compared: Said) -> None:
    it = line(compared(first, second), "prbench", "normalized_score")
    changes = [
        normalized(b.items) - normalized(a.items) for a, b in zip(CASES, OTHER_CASES, strict=True)
    ]
    low, high = exact_interval(changes)
    assert it["low"] == pytest.approx(low, abs=0.02)
    assert it["high"] == pytest.approx(high, abs=0.02)
    error = np.std(changes, ddof=1) / math.sqrt(len(changes))
    assert it["smallest"] == pytest.approx((1.959964 + 0.841621) * error, rel=1e-6)
    assert it["told_apart"] == (low > 0)


def test_the_other_way_round_is_the_negative(first: Path, second: Path, compared: Said) -> None:
    there, back = compared(first, second), compared(second, first)
    for it, other in zip(there["lines"], back["lines"], strict=True):
        assert it["difference"] == pytest.approx(-other["difference"], abs=1e-12)
        assert it["wins"] == other["losses"]
        if it["low"] is not None:
            assert it["low"] == pytest.approx(-other["high"], abs=1e-12)
    assert compared(first, second) == there  # seeded


def test_plawbenchs_overall(tmp_path: Path, compared: Said) -> None:
    import lm_eval_tasks

    folders = []
    for quality in ("middling", "strong"):
        answers = Path(lm_eval_tasks.path()) / "plawbench" / "sample_answers" / f"{quality}.json"
        arguments = ["--model", "prefilled", "--model_args", f"path={answers}",
                     "--tasks", "plawbench_sample", "--metadata", '{"task_prompt": "builtin"}',
                     "--output_path", str(tmp_path / quality), "--log_samples",
                     "--judge", "backend=lexical", "prompt=builtin"]  # fmt: skip
        assert main(["run", *arguments]) == 0
        folders.append(tmp_path / quality)
    found = compared(*folders)
    rows = [read_run(str(folder)).rows for folder in folders]
    it = line(found, "plawbench_sample", "overall")
    theirs = [row["plawbench_sample"]["overall"] for row in rows]
    assert [it["first"], it["second"]] == pytest.approx(theirs, rel=1e-12)
    assert (it["documents"], it["low"], it["smallest"]) == (4, None, None)  # one a subset
    section = line(found, "plawbench_sample_case_analysis", "law_acc")
    assert section["second"] == rows[1]["plawbench_sample_case_analysis"]["law_acc"]


def test_only_shared_scored_documents_count(
    first: Path, second: Path, tmp_path: Path, compared: Said
) -> None:
    folder = Path(shutil.copytree(second, tmp_path / "second"))
    (samples,) = folder.glob("samples_prbench_finance_*")
    lines = [json.loads(text) for text in samples.read_text(encoding="utf-8").splitlines()]
    lines[0]["clipped_score"] = math.nan
    samples.write_text("".join(json.dumps(x) + "\n" for x in lines[:2]), encoding="utf-8")
    found = compared(first, folder)
    it = line(found, "prbench_finance", "clipped_score")
    assert it["documents"] == 1
    assert it["first"] == pytest.approx(clipped(FINANCE[1].items))
    assert it["low"] is None
    note = ("prbench_finance: 1 documents are compared, of 3 in A and 2 in B; 1 that both have "
            "lack a score in one")  # fmt: skip
    assert note in found["notes"]


# --- what is refused -----------------------------------------------------------------------------


def changed(folder: Path, tmp_path: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    copy = Path(shutil.copytree(folder, tmp_path / "changed"))
    (path,) = copy.glob("results_*.json")
    content = json.loads(path.read_text(encoding="utf-8"))
    for name in ("prbench_finance", "prbench_legal"):
        change(content["configs"][name]["metadata"])
    path.write_text(json.dumps(content), encoding="utf-8")
    return copy


def test_another_judge_is_refused_unless_told(
    first: Path, tmp_path: Path, refused: Said, compared: Said, capsys: pytest.CaptureFixture[str]
) -> None:
    other = make_run(tmp_path / "c", "second", model="other", temperature=0.5, concurrency=7)
    message = refused(first, other)
    assert "judge.model: judge in A, other in B" in message
    assert "judge.temperature: not set in A, 0.5 in B" in message
    assert "concurrency" not in message  # no verdict depends on it
    assert "Add --anyway" in message
    found = compared(first, other, "--anyway")
    assert line(found, "prbench", "clipped_score")["documents"] == len(CASES)
    assert "judge.model: judge in A, other in B" in found["differing"]
    assert main(["compare", str(first), str(other), "--anyway"]) == 0
    assert "NOT ALIKE: judge.model: judge in A, other in B" in capsys.readouterr().out


def test_another_prompt_data_or_version_is_refused(
    first: Path, second: Path, tmp_path: Path, refused: Said
) -> None:
    def prompt(metadata: dict[str, Any]) -> None:
        metadata["judge_prompt"]["user"]["sha256"] = "0" * 64

    def dataset(metadata: dict[str, Any]) -> None:
        metadata["dataset"]["fingerprint"] = "1" * 64

    def version(metadata: dict[str, Any]) -> None:
        metadata["version"] = 2.0

    for number, (change, said) in enumerate(
        ((prompt, "judge prompt, user: "), (dataset, "data: "), (version, "task version: 1.0 in A"))
    ):
        folder = changed(second, tmp_path / str(number), change)
        message = refused(first, folder)
        assert said in message
        assert message.count(" in B") == message.count(said.split(":")[0])  # nothing else


def test_what_differs_in_one_task_only_is_said_of_it(
    first: Path, second: Path, tmp_path: Path, refused: Said
) -> None:
    versions = iter((1.0, 2.0))
    folder = changed(second, tmp_path, lambda metadata: metadata.update(version=next(versions)))
    assert "task version: 1.0 in A, 2.0 in B (prbench_legal)" in refused(first, folder)


def test_runs_with_nothing_in_common(
    first: Path, second: Path, tmp_path: Path, refused: Said
) -> None:
    other = make_run(tmp_path / "c", "second", tasks="prbench_legal")
    finance = Path(shutil.copytree(first, tmp_path / "finance"))
    (path,) = finance.glob("results_*.json")
    content = json.loads(path.read_text(encoding="utf-8"))
    del content["configs"]["prbench_legal"]
    path.write_text(json.dumps(content), encoding="utf-8")
    assert "no task in common: prbench_finance in first, prbench_legal in second" in refused(
        finance, other
    )
    bare = Path(shutil.copytree(second, tmp_path / "bare"))
    for samples in bare.glob("samples_*"):
        samples.unlink()
    assert "--log_samples" in refused(first, bare)
    assert "there is no such file" in refused(first, tmp_path / "none")


# --- for people ----------------------------------------------------------------------------------


def test_the_table(first: Path, second: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(first), str(second)]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("A  first\nB  second\n")
    (row,) = (text.split() for text in shown.splitlines()
              if text.split()[:2] == ["prbench", "clipped_score"])  # fmt: skip
    assert row[2:4] == [f"{clipped_mean(CASES):.4f}", f"{clipped_mean(OTHER_CASES):.4f}"]
    assert "3/1/2" in row
    assert "note: with fewer than 20 documents an interval is rough" in shown


def test_the_same_answers_are_pointed_to_agree(first: Path, compared: Said) -> None:
    found = compared(first, first)
    assert {x["difference"] for x in found["lines"]} == {0}
    assert not any(x["told_apart"] for x in found["lines"])
    assert any("there is agree" in note for note in found["notes"])
