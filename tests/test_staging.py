"""``fetch``: a folder that is all another machine needs, from mirrors of the Hub and GitHub."""

from __future__ import annotations

import io
import json
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet as parquet
import pytest
from commands import Finished, command, judge_arguments, metrics, results, samples
from file_server import FileServer, serve
from hub_server import Hub, serve_hub
from rows import FINANCE, LEGAL, Case, World, clipped_mean, write_answers
from stub_server import Received, Reply, StubServer

from custom_metrics import plawbench_prompts, prbench
from custom_metrics.prompts import Official

pytestmark = pytest.mark.slow  # a process for each fetch

COMMIT, OLDER = "a" * 40, "b" * 40
SPLITS = ("finance", "legal", "finance_hard", "legal_hard")
PLAWBENCH = {
    "practical_case_analysis_250.jsonl", "public_legal_consultation_18.json",
    "Defendants_Statement.json", "Plantiffs_Statement.json",
}  # fmt: skip
DEAD = "http://127.0.0.1:9"


def packed(cases: Sequence[Case]) -> bytes:
    file = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist([case.row() for case in cases]), file)
    return file.getvalue()


def official_parts() -> list[Official]:
    specs = [prbench.JUDGE_PROMPTS] + [
        value for name, value in vars(plawbench_prompts).items() if name.startswith(("TASK", "JUD"))
    ]
    return [part for each in specs for parts in each["official"].values() for part in parts]  # type: ignore[misc]


@dataclass
class Mirrors:
    hub: Hub
    github: FileServer

    def fetch(self, folder: Path, *arguments: str) -> Finished:
        environment = {
            "HF_ENDPOINT": self.hub.origin, "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_TELEMETRY": "1",
            "RUBRIC_GITHUB_RAW": self.github.origin,
        }  # fmt: skip
        return command(
            "lm-eval-rubrics", "fetch", "--dest", str(folder), *arguments, environment=environment
        )


@pytest.fixture
def mirrors(shared: Path, tmp_path: Path) -> Iterator[Mirrors]:
    """The repositories as they are laid out, with sources that hold the official texts."""
    raw = tmp_path / "raw"
    constants: dict[tuple[str, str], Any] = defaultdict(dict)
    for part in official_parts():
        text = (shared / "reference" / "prompts" / part.file_name).read_text(encoding="utf-8")
        place = (f"{part.repositories[0]}/{part.commit}/{part.path}", part.constant)
        if part.key is None:
            constants[place] = text
        else:
            constants[place][part.key] = text
    for (path, name), value in constants.items():
        (raw / path).parent.mkdir(parents=True, exist_ok=True)
        with (raw / path).open("a", encoding="utf-8") as file:
            file.write(f"{name} = {value!r}\n")
    (released,) = raw.glob("skylenage/PLawbench/*")
    for name in PLAWBENCH:
        (released / name).write_bytes((shared / "data" / "plawbench" / name).read_bytes())
    content = {"finance": packed(FINANCE), "finance_hard": packed(FINANCE[:2]),
               "legal_hard": packed(LEGAL[:2])}  # fmt: skip
    files = {f"data/{split}-00000-of-00001.parquet": data for split, data in content.items()}
    half = {"data/legal-00000-of-00002.parquet": packed(LEGAL[:1]),
            "data/legal-00001-of-00002.parquet": packed(LEGAL[1:])}  # fmt: skip
    older = {"data/finance-00000-of-00001.parquet": packed(FINANCE[:1])}
    hub = Hub("ScaleAI/PRBench", {"main": COMMIT, "v0": OLDER}, {COMMIT: files | half,
                                                                 OLDER: older})  # fmt: skip
    with serve_hub(hub) as running, serve(raw) as github:
        yield Mirrors(running, github)


def offline(folder: Path) -> Mapping[str, str]:
    """Another machine: nothing is cached there, and no address can be reached."""
    return {
        "RUBRIC_DATA_DIR": str(folder), "RUBRIC_PROMPTS_DIR": str(folder),
        "RUBRIC_CACHE_DIR": str(folder.parent / "other"), "HF_HOME": str(folder.parent / "hf2"),
        "HF_HUB_OFFLINE": "1", "HF_ENDPOINT": DEAD, "RUBRIC_GITHUB_RAW": DEAD,
        "HTTPS_PROXY": DEAD, "HTTP_PROXY": DEAD, "NO_PROXY": "127.0.0.1",
    }  # fmt: skip


def intact(folder: Path) -> bool:
    done = subprocess.run(["sha256sum", "-c", "SHA256SUMS"], cwd=folder, capture_output=True)
    return done.returncode == 0


def listing(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_everything_is_staged_and_a_machine_without_a_network_runs_with_it(
    mirrors: Mirrors, tmp_path: Path
) -> None:
    folder = tmp_path / "carried"
    done = mirrors.fetch(folder)
    assert done.code == 0, done.text
    assert listing(folder) == {
        "SHA256SUMS", "README",
        *(f"plawbench/{name}" for name in PLAWBENCH),
        *(f"prbench/{split}.parquet" for split in SPLITS if split != "legal"),
        "prbench/legal-00000-of-00002.parquet", "prbench/legal-00001-of-00002.parquet",
        *(part.file_name for part in official_parts()),
    }  # fmt: skip
    assert intact(folder)
    staged = listing(folder) - {"README", "SHA256SUMS"}
    lines = (folder / "SHA256SUMS").read_text().splitlines()
    assert {line.split("  ")[1] for line in lines} == staged
    readme = (folder / "README").read_text(encoding="utf-8")
    for name in staged:
        assert f"- {name}: " in readme
    assert f"ScaleAI/PRBench at {COMMIT}" in readme
    assert official_parts()[0].commit in readme
    size = sum((folder / name).stat().st_size for name in staged)
    assert f"{len(staged)} files, {size / 1e6:.1f} MB" in done.output
    assert all(path.stat().st_mode & 0o044 == 0o044 for path in folder.rglob("*") if path.is_file())

    answers = write_answers(
        tmp_path / "answers.json",
        {**{case.id: "An answer." for case in FINANCE},
         **{f"plaintiff_statement-{n}": "答" for n in range(20)}},
    )  # fmt: skip
    world = World()

    def respond(call: Received) -> Reply:
        if re.search(r"\[finance-\d-c\d\]", call.prompt):
            return world.respond(call)
        return Reply(json.dumps({"total_points": 1}))

    with StubServer(respond) as server:
        ran = command(
            "lm-eval-rubrics", "run", "--model", "prefilled", "--model_args", f"path={answers}",
            "--tasks", "prbench_finance", "plawbench_plaintiff_statement",
            *judge_arguments(server.url, prompt="official"),
            "--output_path", str(tmp_path / "out"), "--log_samples", environment=offline(folder),
        )  # fmt: skip
    assert ran.code == 0, ran.text
    found = results(tmp_path / "out")
    assert metrics(found, "prbench_finance")["clipped_score"] == pytest.approx(
        clipped_mean(FINANCE)
    )
    assert metrics(found, "plawbench_plaintiff_statement")["judge_coverage"] == 1
    (judged, *_) = samples(tmp_path / "out", "prbench_finance")
    assert judged["doc"]["judge_prompt"]["user"]["sha256"] == official_parts()[0].sha256


def test_it_goes_on_where_it_was_and_mends_what_is_damaged(
    mirrors: Mirrors, tmp_path: Path
) -> None:
    folder = tmp_path / "carried"
    assert mirrors.fetch(folder, "--tasks", "prbench_finance").code == 0
    assert "plawbench" not in (folder / "SHA256SUMS").read_text()
    assert mirrors.fetch(folder, "--tasks", "plawbench").code == 0
    assert "prbench/finance.parquet" in (folder / "SHA256SUMS").read_text()
    assert f"ScaleAI/PRBench at {COMMIT}" in (folder / "README").read_text(encoding="utf-8")
    assert intact(folder)
    damaged = folder / "prbench_grader.txt"
    damaged.write_text("half")
    before = (folder / "prbench" / "finance.parquet").stat().st_mtime_ns
    done = mirrors.fetch(folder, "--tasks", "prbench_finance")
    assert "prbench_grader.txt  0.00" in done.output
    assert done.output.count("written") == 1
    assert done.output.count("there already") == 1
    assert (folder / "prbench" / "finance.parquet").stat().st_mtime_ns == before
    assert intact(folder)


def test_another_revision_is_named(mirrors: Mirrors, tmp_path: Path) -> None:
    folder = tmp_path / "carried"
    done = mirrors.fetch(folder, "--tasks", "prbench_finance", "--dataset_revision", "v0")
    assert done.code == 0, done.text
    assert f"ScaleAI/PRBench at {OLDER}" in (folder / "README").read_text(encoding="utf-8")


def test_what_cannot_be_had_is_one_line_and_what_was_is_kept(
    mirrors: Mirrors, tmp_path: Path
) -> None:
    folder = tmp_path / "carried"
    for arguments, named in (
        (["--tasks", "prbench_finance", "--dataset_revision", "no-such"], "no-such"),
        (["--tasks", "prbench_fin"], "prbench_finance"),
    ):
        done = mirrors.fetch(folder, *arguments)
        assert done.code == 2
        errors = [line for line in done.errors.splitlines() if line.startswith("error: ")]
        assert len(errors) == 1
        assert named in errors[0]
    assert intact(folder)  # the prompt that came first
    assert "prbench_grader.txt" in listing(folder)


def test_two_states_of_a_split_side_by_side_are_refused(mirrors: Mirrors, tmp_path: Path) -> None:
    folder = tmp_path / "carried"
    (folder / "prbench").mkdir(parents=True)
    (folder / "prbench" / "legal.jsonl").write_text("{}")
    done = mirrors.fetch(folder, "--tasks", "prbench_legal")
    assert done.code == 2
    assert "legal.jsonl" in done.errors


def test_a_folder_that_cannot_be_written_is_named(mirrors: Mirrors, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = mirrors.fetch(tmp_path / "file", "--tasks", "prbench_finance")
    assert done.code == 2
    assert "--dest" in done.errors
    assert "Traceback" not in done.errors
