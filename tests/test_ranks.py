"""Several processes: what needs no torch. Real ranks are in ``extended/test_real_ranks.py``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from commands import command, judge_arguments, model_arguments
from rows import FINANCE, World, write_data
from stub_server import StubServer

from custom_metrics import ranks
from custom_metrics.errors import ConfigError
from custom_metrics.judge import JudgeConfig, resolve_config
from custom_metrics.judge.calls import Usage
from custom_metrics.judge.ledger import Ledger, total

LAUNCHERS: list[dict[str, str]] = [
    {"WORLD_SIZE": "4", "RANK": "2"},
    {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "2"},
    {"PMI_SIZE": "4", "PMI_RANK": "2"},
    {"MV2_COMM_WORLD_SIZE": "4", "MV2_COMM_WORLD_RANK": "2"},
    {"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "2", "SLURM_NTASKS": "4"},
]


# --- what a launcher says ------------------------------------------------------------------------


@pytest.mark.parametrize("environment", LAUNCHERS)
def test_each_launcher_is_understood(environment: Mapping[str, str]) -> None:
    found = ranks.started(environment)
    assert (found.size, found.rank, found.variable) == (4, 2, next(iter(environment)))


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"WORLD_SIZE": "1", "RANK": "0"},
        {"SLURM_NTASKS": "8", "SLURM_PROCID": "0"},  # an allocation, without srun
        {"WORLD_SIZE": "", "PMI_SIZE": "many"},
    ],
)
def test_one_process_is_one(environment: Mapping[str, str]) -> None:
    assert ranks.started(environment).size == 1


def test_a_launcher_inside_another_counts_all_processes() -> None:
    inside = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1", "WORLD_SIZE": "8", "RANK": "5"}
    assert ranks.started(inside) == ranks.Started(8, 5, "WORLD_SIZE")


@pytest.mark.parametrize(
    "environment", [LAUNCHERS[0], *(pytest.param(e, marks=pytest.mark.slow) for e in LAUNCHERS[1:])]
)
def test_copies_are_refused_before_a_model_is_loaded(
    environment: dict[str, str], tmp_path: Path
) -> None:
    data = write_data(tmp_path / "data", finance=FINANCE)
    with StubServer(World().respond, models=("model", "judge")) as server:
        for arguments in (
            judge_arguments(server.url, prompt="builtin"),
            ["--predict_only", "--output_path", str(tmp_path / "out")],  # paid for as well
        ):
            done = command(
                "lm-eval-rubrics", "run", "--tasks", "prbench_finance",
                *model_arguments(server.url), *arguments,
                environment={**environment, "RUBRIC_DATA_DIR": str(data)},
            )  # fmt: skip
            assert done.code == 2, done.text
            assert "error: a launcher started 4 processes" in done.errors
            assert f"unset {next(iter(environment))}" in done.errors
        assert server.received == []
        assert server.model_lists == 0


def test_a_single_process_of_an_allocation_runs(tmp_path: Path) -> None:
    data = write_data(tmp_path / "data", finance=FINANCE)
    with StubServer(World().respond, models=("model", "judge")) as server:
        done = command(
            "lm-eval-rubrics", "run", "--tasks", "prbench_finance", *model_arguments(server.url),
            *judge_arguments(server.url, prompt="builtin"),
            environment={
                "RUBRIC_DATA_DIR": str(data), "SLURM_NTASKS": "8", "SLURM_PROCID": "0",
                "WORLD_SIZE": "1",
            },
        )  # fmt: skip
    assert done.code == 0, done.text


def test_score_in_copies_is_refused(tmp_path: Path) -> None:
    done = command("lm-eval-rubrics", "score", str(tmp_path), environment={"WORLD_SIZE": "2"})
    assert done.code == 2
    assert "error: a launcher started 2 processes (WORLD_SIZE)" in done.errors


def test_the_module_is_the_command() -> None:
    done = command("python", "-m", "custom_metrics.cli", "path")
    assert done.code == 0
    assert done.output.strip().endswith("lm_eval_tasks")


# --- what ranks may use of the judge -------------------------------------------------------------


@pytest.mark.parametrize("size", [2, 3, 7])
def test_shares_add_up_to_what_was_set(size: int) -> None:
    config = resolve_config(
        {"concurrency": 64, "rpm": 500, "tpm": 100_001, "max_calls": 5, "max_cost": 2.5,
         "prices": "1,1,1"}
    )  # fmt: skip
    shares = [ranks.share(config, rank, size) for rank in range(size)]
    for name in ("concurrency", "rpm", "tpm", "max_calls"):
        parts = [getattr(share, name) for share in shares]
        assert sum(parts) == getattr(config, name)
        assert max(parts) - min(parts) <= 1
    assert sum(share.max_cost or 0 for share in shares) == pytest.approx(2.5)
    assert {share.timeout for share in shares} == {config.timeout}


def test_a_limit_that_is_not_set_stays_so_and_one_process_has_all() -> None:
    config = JudgeConfig(model="judge")
    share = ranks.share(config, 1, 2)
    assert (share.rpm, share.tpm, share.max_calls, share.max_cost) == (None,) * 4
    assert ranks.share(config, 0, 1) is config


@pytest.mark.parametrize("name", ["concurrency", "rpm", "tpm"])
def test_a_limit_that_is_too_small_to_share_is_refused(name: str) -> None:
    config = resolve_config({name: 3})
    assert getattr(ranks.share(config, 2, 3), name) == 1
    with pytest.raises(ConfigError, match=f"judge {name}: 3 cannot be shared by 4 processes"):
        ranks.share(config, 0, 4)


def test_a_judge_inside_each_process_is_refused() -> None:
    config = resolve_config(
        {"backend": "lm_eval", "judge_model": "hf", "judge_model_args": "pretrained=a"}
    )
    with pytest.raises(ConfigError, match="each of 2 processes would load the judge's model"):
        ranks.share(config, 0, 2)


# --- what the first rank is given ----------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3, 4, 9])
def test_values_and_samples_come_in_the_order_of_documents(size: int) -> None:
    documents = list(range(7))
    of_rank = [documents[rank::size] for rank in range(size)]
    samples = ranks.in_document_order([{"a": own, "other": own} for own in of_rank], ["a"])
    assert samples[0]["a"] == documents
    assert [rank["a"] for rank in samples[1:]] == [[]] * (size - 1)
    assert [rank["other"] for rank in samples] == of_rank  # somebody else's task
    key = ("score", "none")
    values = ranks.in_document_order([{"a": {key: own} if own else {}} for own in of_rank], ["a"])
    assert values[0]["a"] == {key: documents}
    assert [rank["a"] for rank in values[1:]] == [{key: []}] * (size - 1)


def test_the_ledger_of_a_run_is_the_sum_of_its_ranks() -> None:
    first = Ledger(calls=3, from_store=1, usage=Usage(100, 50, 10), first=5.0, last=7.0)
    second = Ledger(calls=4, retried=2, failed=1, usage=Usage(10, 0, 1), first=900.0, last=909.0)
    both = total([first, second])
    assert both.record() == {
        "calls": 7, "from_store": 1, "retried": 2, "failed": 1, "prompt_tokens": 110,
        "cached_tokens": 50, "completion_tokens": 11,
    }  # fmt: skip
    assert "9.0 s" in both.line()
    assert total([first]) is first
