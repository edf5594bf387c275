"""Results and samples, read back from real runs, and from what people find in their folders."""

from __future__ import annotations

import json
import math
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from rows import FINANCE, LEGAL, clipped
from two_runs import CASES, answers, make_run

from custom_metrics.analysis.results import read_run, read_runs
from custom_metrics.errors import DataError


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("run"), "first")


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    """A copy of the run's folder, to be damaged."""
    return Path(shutil.copytree(original, tmp_path / "results" / "first"))


def only(folder: Path, pattern: str) -> Path:
    (found,) = folder.glob(pattern)
    return found


def edit(path: Path, **changes: Any) -> dict[str, Any]:
    content = {**json.loads(path.read_text(encoding="utf-8")), **changes}
    path.write_text(json.dumps(content), encoding="utf-8")
    return content


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def write_lines(path: Path, content: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in content), encoding="utf-8")


# --- what a run says -----------------------------------------------------------------------------


def test_a_run_is_read_as_it_was_written(folder: Path) -> None:
    run = read_run(str(folder))
    assert run.label == "first"
    assert list(run.rows) == ["prbench_finance", "prbench_legal", "prbench"]
    assert run.groups == {"prbench": ["prbench_finance", "prbench_legal"]}
    assert run.notes == ()
    written = json.loads(only(folder, "results_*.json").read_text(encoding="utf-8"))
    assert run.date == written["date"]
    for name, row in run.rows.items():
        theirs = written["results"][name]
        assert row["clipped_score"] == theirs["clipped_score,none"]
        assert row["clipped_score_stderr"] == theirs["clipped_score_stderr,none"]
        assert row["sample_len"] == theirs["sample_len"]
    provenance = run.provenance("prbench_legal")
    assert provenance.judge_name == provenance.judge["model"] == "judge"
    assert {len(value) for value in (*provenance.judge_prompt.values(), provenance.data)} == {64}
    assert provenance.task_prompt == {}
    assert provenance.version == "1.0"


def test_documents_hold_scores_verdicts_and_what_describes_them(folder: Path) -> None:
    run = read_run(str(folder))
    assert [document.id for document in run.documents] == [case.id for case in CASES]
    for document, case in zip(run.documents, CASES, strict=True):
        assert document.benchmark == "prbench"
        assert document.score == pytest.approx(clipped(case.items), abs=1e-12)
        assert [c.met for c in document.criteria] == [float(item.met) for item in case.items]
        assert [c.weight for c in document.criteria] == [item.weight for item in case.items]
        assert document.answer == answers("first")[case.id]
        assert (document.status, document.empty, document.excluded) == ("answered", False, False)
        assert document.messages == tuple(case.messages)
        assert document.axes == {
            "topic": "Tests", "expert": "Expert", "economic_pathway": "Other", "field": "Finance",
            "turns": str(len(case.prompts)),
        }  # fmt: skip
    finance = run.documents_of(["prbench_finance"])
    assert [document.id for document in finance] == [case.id for case in FINANCE]


def test_the_bundled_sample_of_plawbench(tmp_path: Path) -> None:
    folder = make_run_of_plawbench(tmp_path)
    run = read_run(str(folder))
    by_subset = {d.axes["subset"]: d for d in run.documents}
    assert set(by_subset) == {
        "case_analysis", "legal_consultation", "plaintiff_statement", "defendant_statement",
    }  # fmt: skip
    case = by_subset["case_analysis"]
    assert case.axes["category"] == "民间借贷纠纷"
    assert [c.id for c in case.criteria] == ["conclusion", "fact", "reasoning", "law"]
    points = sum(c.weight * (c.met or 0) for c in case.criteria)
    assert case.score == pytest.approx(points / sum(c.weight for c in case.criteria))
    assert run.rows["plawbench_sample_case_analysis"]["acc"] == case.score
    (total,) = by_subset["plaintiff_statement"].criteria
    assert (total.id, total.met) == ("total", by_subset["plaintiff_statement"].score)
    assert set(run.provenance("plawbench_sample_case_analysis").task_prompt) == {"user"}


def make_run_of_plawbench(folder: Path, quality: str = "strong") -> Path:
    import lm_eval_tasks
    from custom_metrics.cli import main

    path = Path(lm_eval_tasks.path()) / "plawbench" / "sample_answers" / f"{quality}.json"
    arguments = ["run", "--model", "prefilled", "--model_args", f"path={path}",
                 "--tasks", "plawbench_sample", "--metadata", '{"task_prompt": "builtin"}',
                 "--output_path", str(folder / "law"), "--log_samples",
                 "--judge", "backend=lexical", "prompt=builtin"]  # fmt: skip
    assert main(arguments) == 0
    (found,) = (folder / "law").rglob("results_*.json")
    return found.parent


# --- which files count ---------------------------------------------------------------------------


def again(folder: Path, stamp: str, tasks: set[str]) -> None:
    """Another run of ``tasks`` into the same folder, with other scores."""
    content = json.loads(only(folder, "results_*.json").read_text(encoding="utf-8"))
    for name in ("results", "configs"):
        content[name] = {task: content[name][task] for task in tasks if task in content[name]}
    for row in content["results"].values():
        row["clipped_score,none"] = 0.123
    (folder / f"results_{stamp}.json").write_text(json.dumps(content), encoding="utf-8")
    for task in tasks:
        for samples in folder.glob(f"samples_{task}_2*.jsonl"):
            shutil.copy(samples, folder / f"samples_{task}_{stamp}.jsonl")


def test_of_each_task_the_newest_results_count(folder: Path) -> None:
    again(folder, "2999-01-01T00-00-00.000000", {"prbench_finance"})
    run = read_run(str(folder))
    assert run.rows["prbench_finance"]["clipped_score"] == 0.123
    assert run.rows["prbench_legal"]["clipped_score"] != 0.123
    assert len(run.documents) == len(CASES)
    # A group of an older run is not a mean of the newer ones.
    assert list(run.rows) == ["prbench_finance", "prbench_legal"]
    assert run.groups == {}
    assert run.notes == (
        "prbench_finance: the newest results count, not those of 1 earlier run",
        "prbench: its members were run again later, so its row is left out",
    )


def test_a_file_stands_for_itself(folder: Path) -> None:
    oldest = only(folder, "results_*.json")
    again(folder, "2999-01-01T00-00-00.000000", {"prbench_finance"})
    run = read_run(str(oldest))
    assert run.rows["prbench_finance"]["clipped_score"] != 0.123
    assert run.notes == ()
    assert list(run.groups) == ["prbench"]
    first, second = read_runs([str(oldest), str(folder)])
    assert [first.label, second.label] == ["first (1)", "first (2)"]  # of the same second


def test_a_parent_folder_has_a_run_for_each_model(folder: Path) -> None:
    other = Path(shutil.copytree(folder, folder.parent / "org__Llama-3.1"))
    edit(only(other, "results_*.json"), model_name="org/Llama-3.1")
    assert [run.label for run in read_runs([str(folder.parent)])] == ["first", "Llama-3.1"]
    with pytest.raises(DataError, match=r"2 runs are in it; give one of .*first, .*Llama-3\.1"):
        read_run(str(folder.parent))
    # The same one twice is one.
    assert len(read_runs([str(folder.parent), str(folder)])) == 2


def test_results_without_samples_have_only_their_scores(folder: Path) -> None:
    samples = only(folder, "samples_prbench_legal_*")
    samples.unlink()
    run = read_run(str(folder))
    assert [document.task for document in run.documents] == ["prbench_finance"] * len(FINANCE)
    assert "clipped_score" in run.rows["prbench_legal"]
    assert run.notes == (
        f"prbench_legal: no {samples.name} beside the results, so only its scores",
    )


def test_other_tasks_and_answers_without_a_judgement_are_left_out(folder: Path) -> None:
    path = only(folder, "results_*.json")
    content = json.loads(path.read_text(encoding="utf-8"))
    content["results"]["arc_easy"] = {"acc,none": 0.5, "alias": "arc_easy"}
    content["configs"]["arc_easy"] = {"task": "arc_easy", "metadata": {"version": 1.0}}
    del content["configs"]["prbench_legal"]["metadata"]["judge"]  # as with --predict_only
    edit(path, **content)
    run = read_run(str(folder))
    assert list(run.rows) == list(run.configs) == ["prbench_finance"]
    assert run.notes == ("prbench_legal: answers without a judgement are left out",)


def test_samples_that_stop_early_are_named(folder: Path) -> None:
    samples = only(folder, "samples_prbench_legal_*")
    write_lines(samples, lines(samples)[:-1])
    (note,) = read_run(str(folder)).notes
    assert note == f"prbench_legal: {samples.name} holds {len(LEGAL) - 1} of {len(LEGAL)} documents"


# --- what is refused -----------------------------------------------------------------------------


def refused(path: Path) -> str:
    with pytest.raises(DataError) as caught:
        read_runs([str(path)])
    return str(caught.value)


def test_folders_without_results(tmp_path: Path, folder: Path) -> None:
    assert refused(tmp_path / "none") == f"{tmp_path / 'none'}: there is no such file or folder"
    (tmp_path / "empty").mkdir()
    assert "no results_*.json in it" in refused(tmp_path / "empty")
    edit(only(folder, "results_*.json"), configs={})
    assert "no results of this project's tasks in it" in refused(folder)


def test_files_that_are_no_results(tmp_path: Path, folder: Path) -> None:
    path = only(folder, "results_*.json")
    for text, said in (
        ("", "not JSON in UTF-8"),
        ("[1]", "not a results file of the harness"),
        ('{"results": 1}', "not a results file of the harness"),
        ('{"results": {"a": {}}, "configs": [1]}', "not a results file of the harness"),
        ('{"results": {"a": {}}, "configs": {"a": null}}', "not a results file of the harness"),
    ):
        path.write_text(text, encoding="utf-8")
        assert said in (message := refused(folder)), message
        assert str(path) in message
    path.write_bytes(b"\xff\xfe{}")
    assert "not JSON in UTF-8" in refused(folder)
    other = tmp_path / "notes.json"
    other.write_text('{"results": {}}', encoding="utf-8")
    assert "not a results file of the harness" in refused(other)


def test_damaged_samples_are_named_with_their_line(folder: Path) -> None:
    path = only(folder, "samples_prbench_legal_*")
    good = lines(path)
    text = path.read_text(encoding="utf-8")

    path.write_text(text[:-30], encoding="utf-8")
    assert refused(folder) == f"{path}, line 3: not JSON; the file ends in the middle of it"
    path.write_text(text.replace("{", "", 1), encoding="utf-8")
    assert refused(folder) == f"{path}, line 1: not JSON"
    write_lines(path, [*good, good[1]])
    assert refused(folder) == (
        f"{path}, line 4: a second line for 'legal-2', which would count twice"
    )

    def criterion(**changes: Any) -> Any:
        return lambda line: line["doc"]["criteria"][0].update(changes)

    for break_it, said in (
        (lambda line: line["doc"].pop("messages"), "doc.messages: "),
        (lambda line: line["doc"]["messages"][0].update(content=[1]), "doc.messages.0.content: "),
        (lambda line: line["doc"]["messages"][0].pop("role"), "doc.messages.0.role: "),
        (lambda line: line.pop("clipped_score"), "it lacks 'clipped_score'"),
        (lambda line: line.update(clipped_score="high"), "valid number"),
        (lambda line: line.update(clipped_score=10**400), "valid number"),
        (lambda line: line.update(clipped_score=math.inf), "is no score"),
        (lambda line: line["doc"]["criteria"][0].pop("met"), "criteria.0.met: "),
        (lambda line: line["doc"].pop("criteria"), "neither criteria nor grading"),
        (lambda line: line.update(doc=[]), "doc: "),
        (lambda line: line["doc"].update(answer=None), "answer: "),
        (lambda line: line["doc"].update(answer_status="?"), "answer_status: "),
        (lambda line: line["doc"].update(turns="\u00b2"), "doc.turns: "),
        (lambda line: line["doc"].update(topic={}), "doc.topic: "),
        (criterion(met=math.nan), "criteria.0.met: "),
        (criterion(met=2), "criteria.0.met: "),
        (criterion(weight=math.nan), "criteria.0.weight: "),
        (criterion(weight=None), "criteria.0.weight: "),
        (criterion(text=3.5), "criteria.0.text: "),
        (criterion(explanation={}), "criteria.0.explanation: "),
        (criterion(votes=[{"judge": "a"}]), "criteria.0.votes.0.repeat: "),
        (criterion(id="legal-2-c1"), "the same id"),
    ):
        broken = json.loads(json.dumps(good))
        break_it(broken[1])
        write_lines(path, broken)
        assert refused(folder).startswith(f"{path}, line 2: not a judged line of this project's (")
        assert said in refused(folder)
    path.write_bytes(text.encode()[:50] + b"\xff" + text.encode()[50:])
    assert "not UTF-8" in refused(folder)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission(folder: Path) -> None:
    only(folder, "results_*.json").chmod(0)
    assert "cannot be read (Permission denied)" in refused(folder)


# --- several opinions and several answers --------------------------------------------------------


def test_votes_and_several_answers_are_read(folder: Path) -> None:
    """The form that panels and several answers to a document have in a samples file."""
    path = only(folder, "samples_prbench_legal_*")
    content = lines(path)
    vote = {"judge": "a", "repeat": 0, "met": None, "explanation": None, "failure": "refused"}
    content[0]["doc"]["criteria"][0]["votes"] = [vote, {**vote, "repeat": 1, "met": True}]
    doc = content[1]["doc"]
    names = ("answer", "answer_status", "criteria")
    one = {name: doc.pop(name) for name in names}
    doc["answers"] = [one, {**one, "answer": "", "answer_status": "empty"}]
    write_lines(path, content)
    first, second, _ = read_run(str(folder)).documents_of(["prbench_legal"])
    assert [v["met"] for v in first.criteria[0].votes] == [None, True]
    assert [a.empty for a in second.answers] == [False, True]
    assert second.answer == answers("first")["legal-2"]


def test_labels_of_one_model_say_what_is_not_the_same(folder: Path) -> None:
    copies = [Path(shutil.copytree(folder, folder.parents[1] / name / "first")) for name in "ab"]
    labels = [run.label for run in read_runs([str(path) for path in copies])]
    assert labels == ["first (a)", "first (b)"]
    path = only(copies[1], "results_*.json")
    content = json.loads(path.read_text(encoding="utf-8"))
    for config in content["configs"].values():
        config["metadata"]["judge"]["model"] = "judge-2"
    edit(path, configs=content["configs"])
    labels = [run.label for run in read_runs([str(path) for path in copies])]
    assert labels == ["first (judge)", "first (judge-2)"]


def test_an_excluded_document_has_no_score(folder: Path) -> None:
    path = only(folder, "samples_prbench_legal_*")
    content = lines(path)
    content[0].update(clipped_score=math.nan, judge_coverage=0.0)
    content[0]["doc"]["criteria"][0].update(met=None, explanation=None, failure="refused")
    write_lines(path, content)
    document = read_run(str(folder)).documents_of(["prbench_legal"])[0]
    assert document.excluded
    assert math.isnan(document.score)
    assert (document.criteria[0].met, document.criteria[0].failure) == (None, "refused")


# --- several runs in one place -------------------------------------------------------------------


def copied(original: Path, folder: Path, stamp: str, **changes: Any) -> Path:
    """The run's files once more in ``folder``, of another date; ``changes`` of the results."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in original.iterdir():
        old = only(original, "results_*.json").stem.removeprefix("results_")
        shutil.copy(path, folder / path.name.replace(old, stamp))
    path = folder / f"results_{stamp}.json"
    edit(path, **changes)
    return path


def test_two_models_in_one_folder_are_two_runs(original: Path, tmp_path: Path) -> None:
    folder = tmp_path / "both"
    copied(original, folder, "2026-01-01T00-00-00.000000", model_name="one/alpha")
    copied(original, folder, "2026-01-02T00-00-00.000000", model_name="one/beta")
    assert [run.label for run in read_runs([str(folder)])] == ["alpha", "beta"]


def test_two_judges_of_a_task_in_one_folder_are_two_runs(original: Path, tmp_path: Path) -> None:
    folder = tmp_path / "both"
    copied(original, folder, "2026-01-01T00-00-00.000000")
    path = copied(original, folder, "2026-01-02T00-00-00.000000")
    content = json.loads(path.read_text(encoding="utf-8"))
    for config in content["configs"].values():
        config["metadata"]["judge"]["model"] = "other"
    edit(path, **content)
    assert [run.label for run in read_runs([str(folder)])] == ["first (judge)", "first (other)"]


def test_a_run_given_twice_is_one_and_links_are_followed(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(folder, target_is_directory=True)
    (folder / "round").symlink_to(folder, target_is_directory=True)
    given = [str(folder), f"{folder}/../{folder.name}", str(tmp_path / "link")]
    assert len(read_runs(given)) == 1
    assert len(read_runs([str(tmp_path / "link")])) == 1
    (tmp_path / "results" / "again").symlink_to(folder, target_is_directory=True)
    assert len(read_runs([str(tmp_path / "results")])) == 1


def test_samples_of_another_run_are_a_conflict(folder: Path) -> None:
    assert read_run(str(folder)).conflicts == ()
    path = only(folder, "results_*.json")
    content = json.loads(path.read_text(encoding="utf-8"))
    content["results"]["prbench_finance"]["clipped_score,none"] = 0.9
    edit(path, **content)
    (conflict,) = read_run(str(folder)).conflicts
    assert "samples_prbench_finance" in conflict
    assert "0.9000: one of them is of another run" in conflict


def test_keys_in_foreign_results_are_not_passed_on(folder: Path) -> None:
    secret = "sk-a-secret-0123456789"
    path = only(folder, "results_*.json")
    content = json.loads(path.read_text(encoding="utf-8"))
    content["model_name"] = f"http://user:{secret}@host/v1"
    for config in content["configs"].values():
        config["metadata"]["judge"] |= {
            "api_key": secret, "extra_body": {"headers": {"Authorization": f"Bearer {secret}"}},
            "models": [{"model": "a", "api_key": secret}],
        }  # fmt: skip
    edit(path, **content)
    assert secret not in repr(read_run(str(folder)))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("judge", "text"), ("judge", [1]), ("judge_prompt", "text"), ("dataset", "text"),
        ("prompts_cut", 3), ("judge_opinions", {"scores": [{"judge": 1}]}),
    ],
)  # fmt: skip
def test_metadata_of_another_shape_is_refused(folder: Path, name: str, value: Any) -> None:
    path = only(folder, "results_*.json")
    content = json.loads(path.read_text(encoding="utf-8"))
    content["configs"]["prbench_legal"]["metadata"][name] = value
    edit(path, **content)
    assert refused(folder).startswith(f"{path}: not a results file of the harness ({name}")


@pytest.mark.parametrize("value", [math.inf, 1e300, 10**400])
def test_numbers_that_no_run_can_have_are_refused(folder: Path, value: float) -> None:
    path = only(folder, "results_*.json")
    content = json.loads(path.read_text(encoding="utf-8"))
    content["results"]["prbench_legal"]["normalized_score,none"] = value
    edit(path, **content)
    assert "normalized_score is no number that a run can have" in refused(folder)
    edit(path, **{**content, "date": value, "results": {}})
    assert "(date: " in refused(folder)
