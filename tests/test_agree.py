"""``lm-eval-rubrics agree`` over real runs; right values from the verdicts that were set."""

from __future__ import annotations

import csv
import json
import math
import re
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from commands import judge_arguments, model_arguments, only
from recorded import CLIPPED, JUDGE_CALLS, RecordedRun
from rows import ACCURACY, FINANCE, LEGAL, UTILITY, clipped, clipped_mean
from stub_server import StubServer
from two_runs import CASES, OTHER_CASES, make_run

import lm_eval_tasks
from custom_metrics.cli import main

README = Path(__file__).resolve().parents[1] / "README.md"
Said = Callable[..., Any]
# Of each criterion: id, weight, category, what the one judge finds and what the other one does.
VERDICTS = [
    (case.tag(number), item.weight, item.category, item.met, other.met)
    for case, changed in zip(CASES, OTHER_CASES, strict=True)
    for number, (item, other) in enumerate(zip(case.items, changed.items, strict=True))
]


@pytest.fixture(scope="module")
def by_judge(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("judge"), "first")


@pytest.fixture(scope="module")
def by_other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("other"), "first", model="other")


@pytest.fixture
def agreed(capsys: pytest.CaptureFixture[str]) -> Said:
    def run(*arguments: object) -> Any:
        capsys.readouterr()
        assert main(["agree", *map(str, arguments), "--json"]) == 0
        return json.loads(capsys.readouterr().out, parse_constant=pytest.fail)["agreements"]

    return run


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Said:
    def run(*arguments: object) -> str:
        capsys.readouterr()
        assert main(["agree", *map(str, arguments)]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        return captured.err

    return run


def line(found: Any, axis: str | None = None, value: str | None = None) -> dict[str, Any]:
    (it,) = (x for x in found["lines"] if (x["axis"], x["value"]) == (axis, value))
    return dict(it)


def figures(pairs: Iterable[tuple[bool, bool]]) -> dict[str, float | int | None]:
    """The figures of yes-or-no verdicts, from their definitions."""
    listed = list(pairs)
    n = len(listed)
    both, neither = listed.count((True, True)), listed.count((False, False))
    only_first, only_second = listed.count((True, False)), listed.count((False, True))
    observed = (both + neither) / n
    yes = (both + only_first) / n, (both + only_second) / n
    chance = yes[0] * yes[1] + (1 - yes[0]) * (1 - yes[1])
    f1 = [
        2 * hits / (2 * hits + only_first + only_second)
        for hits in (both, neither)
        if hits + only_first + only_second
    ]
    return {
        "count": n, "both": both, "only_first": only_first, "only_second": only_second,
        "neither": neither, "agreement": observed,
        "kappa": (observed - chance) / (1 - chance) if chance < 1 else None,
        "macro_f1": sum(f1) / len(f1),
    }  # fmt: skip


def check(it: dict[str, Any], pairs: Iterable[tuple[bool, bool]]) -> None:
    for name, value in figures(pairs).items():
        assert it[name] == (value if value is None else pytest.approx(value, abs=1e-12)), name


# --- two judges ----------------------------------------------------------------------------------


def test_two_judges_of_one_models_answers(by_judge: Path, by_other: Path, agreed: Said) -> None:
    (found,) = agreed(by_judge, by_other)
    assert (found["first"], found["second"], found["benchmark"]) == ("judge", "other", "prbench")
    assert found["notes"] == []
    check(line(found), ((a, b) for *_, a, b in VERDICTS))
    for sign in ("positive", "negative"):
        of_it = [(a, b) for _, weight, _, a, b in VERDICTS if (weight > 0) == (sign == "positive")]
        check(line(found, "weight", sign), of_it)
    for category in (ACCURACY, UTILITY):
        of_it = [(a, b) for _, _, name, a, b in VERDICTS if name == category]
        check(line(found, "rubric category", category), of_it)
    lines = {x["value"] for x in found["lines"] if x["axis"] == "rubric category"}
    assert lines == {category for _, _, category, _, _ in VERDICTS}


def test_what_the_other_judge_does_to_the_score(
    by_judge: Path, by_other: Path, agreed: Said
) -> None:
    (found,) = agreed(by_judge, by_other)
    effect = found["effect"]
    assert found["score"] == "clipped_score"
    assert effect["first"] == pytest.approx(clipped_mean(CASES), abs=1e-12)
    assert effect["second"] == pytest.approx(clipped_mean(OTHER_CASES), abs=1e-12)
    assert effect["value"] == pytest.approx(clipped_mean(OTHER_CASES) - clipped_mean(CASES))
    moves = [clipped(b.items) - clipped(a.items) for a, b in zip(CASES, OTHER_CASES, strict=True)]
    assert effect["documents"] == len(CASES)
    assert effect["wins"] == sum(move > 0 for move in moves)
    assert effect["losses"] == sum(move < 0 for move in moves)


def test_the_criteria_they_differ_on_come_by_weight(
    by_judge: Path, by_other: Path, agreed: Said
) -> None:
    (found,) = agreed(by_judge, by_other)
    differing = {name: (weight, a, b) for name, weight, _, a, b in VERDICTS if a != b}
    listed = found["differing"]
    assert {x["criterion"]: (x["weight"], x["first"], x["second"]) for x in listed} == differing
    weights = [abs(x["weight"]) for x in listed]
    assert weights == sorted(weights, reverse=True)
    assert all(x["first_reason"].startswith("So it is with") for x in listed)


def test_the_table_says_the_same(
    by_judge: Path, by_other: Path, agreed: Said, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = line(agreed(by_judge, by_other)[0])
    assert main(["agree", str(by_judge), str(by_other)]) == 0
    said = capsys.readouterr().out
    (row,) = (text for text in said.splitlines() if text.strip().startswith("all "))
    shown = [*map(str, (whole["count"], whole["both"], whole["only_first"], whole["only_second"],
                        whole["neither"])),
             *(f"{whole[name]:.3f}" for name in ("agreement", "kappa", "macro_f1"))]  # fmt: skip
    assert row.split()[1:] == shown
    assert "macro-F1 0.802 and κ 0.603" in said
    assert "Where they differ most" in said


def test_a_judge_agrees_with_itself(by_judge: Path, agreed: Said) -> None:
    (found,) = agreed(by_judge, by_judge)
    assert found["first"] != found["second"]
    whole = line(found)
    assert (whole["agreement"], whole["kappa"], whole["macro_f1"]) == (1, 1, 1)
    assert found["effect"]["value"] == 0
    assert found["differing"] == []


def damaged(folder: Path, target: Path, task: str, change: Callable[[Any], None]) -> Path:
    """A copy of a run whose samples of ``task`` are changed."""
    copy = Path(shutil.copytree(folder, target))
    path = only(copy, f"samples_{task}_*")
    lines = [json.loads(text) for text in path.read_text(encoding="utf-8").splitlines()]
    for sample in lines:
        change(sample)
    path.write_text("".join(json.dumps(sample) + "\n" for sample in lines), encoding="utf-8")
    return copy


def test_other_answers_are_left_out_and_said(
    by_judge: Path, by_other: Path, tmp_path: Path, agreed: Said, refused: Said
) -> None:
    def change(sample: Any) -> None:
        if sample["doc"]["id"] == "finance-1":
            sample["doc"]["answer"] += " And more."

    copy = damaged(by_other, tmp_path / "b", "prbench_finance", change)
    (found,) = agreed(by_judge, copy)
    assert found["notes"] == ["1 documents have other answers in the second run, and are left out"]
    rest = [(a, b) for name, _, _, a, b in VERDICTS if not name.startswith("finance-1")]
    check(line(found), rest)
    assert found["effect"]["documents"] == len(CASES) - 1

    second_model = make_run(tmp_path / "other", "second")
    message = refused(by_judge, second_model)
    assert "no graded answer in common: 6 documents have other answers" in message


def test_verdicts_that_are_not_there_are_none(
    by_judge: Path, by_other: Path, tmp_path: Path, agreed: Said
) -> None:
    def change(sample: Any) -> None:
        for criterion in sample["doc"]["criteria"]:
            if criterion["id"] == "finance-1-c0":
                criterion.update(met=None, failure="no reply")

    copy = damaged(by_other, tmp_path / "b", "prbench_finance", change)
    (found,) = agreed(by_judge, copy)
    check(line(found), [(a, b) for name, _, _, a, b in VERDICTS if name != "finance-1-c0"])
    assert found["notes"] == ["1 criteria lack a verdict in one of them"]
    assert found["effect"]["documents"] == len(CASES) - 1


def test_agreement_without_variety_has_no_kappa(
    by_judge: Path, tmp_path: Path, agreed: Said
) -> None:
    def all_met(sample: Any) -> None:
        for criterion in sample["doc"]["criteria"]:
            criterion["met"] = True

    one = damaged(by_judge, tmp_path / "a" / "first", "prbench_finance", all_met)
    one = damaged(one, tmp_path / "b" / "first", "prbench_legal", all_met)
    two = Path(shutil.copytree(one, tmp_path / "c" / "first"))
    (found,) = agreed(one, two)
    whole = line(found)
    assert (whole["agreement"], whole["kappa"], whole["macro_f1"]) == (1, None, 1)


# --- people --------------------------------------------------------------------------------------


def label_file(path: Path, rows: Iterable[Sequence[object]], mark: str = "") -> Path:
    with path.open("w", encoding="utf-8", newline="") as out:
        out.write(mark)
        writer = csv.writer(out)
        writer.writerow(["who", "document", "criterion", "label"])
        writer.writerows(["expert", *row] for row in rows)
    return path


def test_people_s_labels(by_judge: Path, tmp_path: Path, agreed: Said) -> None:
    words = {True: ["yes", "1", "Met", "TRUE"], False: ["no", "0", "not met", "False"]}
    labelled = VERDICTS[:-1]  # people have not seen all
    rows = [
        (name.rpartition("-c")[0], name, words[other][number % 4])
        for number, (name, _, _, _, other) in enumerate(labelled)
    ]
    rows.append((VERDICTS[-1][0].rpartition("-c")[0], VERDICTS[-1][0], ""))
    for mark in ("", "\ufeff"):
        path = label_file(tmp_path / "labels.csv", rows, mark)
        (found,) = agreed(by_judge, "--labels", path)
        assert (found["first"], found["second"]) == ("judge", "people")
        check(line(found), ((a, b) for *_, a, b in labelled))
        assert found["notes"] == ["1 criteria lack a verdict in one of them"]
        assert found["effect"]["documents"] == len(CASES) - 1


def test_two_judges_and_people(
    by_judge: Path, by_other: Path, tmp_path: Path, agreed: Said
) -> None:
    rows = [(n.rpartition("-c")[0], n, "yes" if b else "no") for n, *_, b in VERDICTS]
    found = agreed(by_judge, by_other, "--labels", label_file(tmp_path / "l.csv", rows))
    assert [(x["first"], x["second"]) for x in found] == [
        ("judge", "other"), ("judge", "people"), ("other", "people"),
    ]  # fmt: skip
    assert line(found[2])["agreement"] == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no column document, criterion, label in its first line"),
        ("document,criterion\n", "no column label in its first line"),
        ("document,criterion,label\n", "no labels in it"),
        ("document,criterion,label\nfinance-1,finance-1-c0,perhaps\n", "line 2: 'perhaps' is none"),
        ("document,criterion,label\nfinance-1,c9,yes\n", "line 2: 'finance-1' has no criterion"),
        ("document,criterion,label\nx-1,x-1-c0,yes\n", "1 labels are of documents that the run"),
        ("document,criterion,label\n,finance-1-c0,yes\n", "line 2: document and criterion"),
        ("document,criterion,label\nfinance-1\n", "line 2: document and criterion"),
        (
            "document,criterion,label\nfinance-1,finance-1-c0,yes\nfinance-1,finance-1-c0,no\n",
            "line 3: a second label for 'finance-1-c0'",
        ),
        ('document,criterion,label\nfinance-1,finance-1-c0,"yes\n', "not CSV in UTF-8"),
        ("document,criterion,label\nfinance-1,finance-1-c0,\udcff\n", "not CSV in UTF-8"),
    ],
)
def test_labels_that_cannot_be_used(
    by_judge: Path, tmp_path: Path, refused: Said, text: str, message: str
) -> None:
    path = tmp_path / "labels.csv"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    said = refused(by_judge, "--labels", path)
    assert message in said
    assert said.count("\n") == 1


def test_what_is_needed(by_judge: Path, tmp_path: Path, refused: Said) -> None:
    assert "Give a second run, or --labels" in refused(by_judge)
    assert "there is no such file" in refused(by_judge, tmp_path / "nowhere")
    assert "cannot be read" in refused(by_judge, "--labels", tmp_path / "nowhere.csv")


# --- points --------------------------------------------------------------------------------------


def plawbench(folder: Path, quality: str) -> Path:
    answers = Path(lm_eval_tasks.path()) / "plawbench" / "sample_answers" / f"{quality}.json"
    arguments = ["--model", "prefilled", "--model_args", f"path={answers}",
                 "--tasks", "plawbench_sample", "--metadata", '{"task_prompt": "builtin"}',
                 "--output_path", str(folder), "--log_samples",
                 "--judge", "backend=lexical", "prompt=builtin"]  # fmt: skip
    assert main(["run", *arguments]) == 0
    return only(folder, "results_*.json").parent


def test_people_s_points(tmp_path: Path, agreed: Said, refused: Said) -> None:
    folder = plawbench(tmp_path / "run", "middling")
    rows, shares = [], []
    for path in sorted(folder.glob("samples_*")):
        for text in path.read_text(encoding="utf-8").splitlines():
            doc = json.loads(text)["doc"]
            for number, section in enumerate(doc["grading"]["sections"]):
                points = section["points"] * (number % 3) / 2
                rows.append((doc["id"], section["section"], points))
                shares.append((section["awarded"] / section["points"], points / section["points"]))
    (found,) = agreed(folder, "--labels", label_file(tmp_path / "labels.csv", rows))
    whole = line(found)
    n = len(shares)
    assert whole["count"] == n > 4
    changes = [b - a for a, b in shares]
    assert whole["bias"] == pytest.approx(sum(changes) / n)
    assert whole["mean_difference"] == pytest.approx(sum(map(abs, changes)) / n)
    means = [sum(side) / n for side in zip(*shares, strict=True)]
    spread = [math.sqrt(sum((x[k] - means[k]) ** 2 for x in shares)) for k in (0, 1)]
    product = sum((a - means[0]) * (b - means[1]) for a, b in shares)
    assert whole["correlation"] == pytest.approx(product / (spread[0] * spread[1]))
    # Quadratic κ: one minus the squared disagreement over that of independent judges.
    tenths = [(round(10 * a), round(10 * b)) for a, b in shares]
    seen = sum((a - b) ** 2 for a, b in tenths) / n
    chance = sum((a - b) ** 2 for a, _ in tenths for _, b in tenths) / n**2
    assert whole["kappa"] == pytest.approx(1 - seen / chance)
    assert found["score"] == "overall"
    by_section = {x["value"]: x["count"] for x in found["lines"] if x["axis"] == "section"}
    assert sum(by_section.values()) == n

    for text in ("-1", "1000", "nan", "yes"):
        said = refused(folder, "--labels", label_file(tmp_path / "bad.csv", [(*rows[0][:2], text)]))
        assert re.search(r"line 2: points from 0 to \d+ are needed", said)


# --- the lexical judge beside a real one ---------------------------------------------------------


@pytest.mark.slow
def test_what_the_readme_says_of_the_lexical_judge(
    official_data: Path, official_prompts: Path, tmp_path: Path, agreed: Said
) -> None:
    """The recorded run's verdicts are a real judge's; the same answers by the lexical one."""
    recorded = RecordedRun(official_data, official_prompts)
    real, lexical = tmp_path / "real", tmp_path / "lexical"
    with StubServer(recorded.respond, models=("model", "judge")) as server:
        assert main(
            ["run", "--tasks", "prbench_finance_hard", "--samples", recorded.samples,
             *model_arguments(server.url), *judge_arguments(server.url),
             "--output_path", str(real), "--log_samples"]
        ) == 0  # fmt: skip
    samples = only(real, "samples_*.jsonl")
    judge = ["--judge", "backend=lexical", "prompt=builtin"]
    assert main(["score", str(samples), *judge, "--output_path", str(lexical)]) == 0
    (found,) = agreed(real, lexical)
    whole, effect = line(found), found["effect"]
    assert whole["count"] == JUDGE_CALLS
    assert round(effect["first"], 6) == CLIPPED
    stated = " ".join(README.read_text(encoding="utf-8").split())
    assert (
        f"agrees with a real one on {whole['agreement']:.1%} of the verdicts, "
        f"Cohen's κ {whole['kappa']:.3f} and macro-F1 {whole['macro_f1']:.3f}" in stated
    )
    assert f"{effect['second']:.3f} instead of {effect['first']:.3f}" in stated


def test_the_data_of_these_tests_has_both_kinds() -> None:
    """Or figures could come out right by accident."""
    assert {(a, b) for *_, a, b in VERDICTS} == {
        (True, True), (True, False), (False, True), (False, False),
    }  # fmt: skip
    assert len(FINANCE) == len(LEGAL) == 3
