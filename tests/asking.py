"""Calls to a judge, and what became of them, for tests that use the engine itself."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from rows import ACCURACY, UTILITY, Case, Item

from custom_metrics.judge import Judge, JudgeCall, JudgeConfig, Met, Outcome, engine
from custom_metrics.judge import read_met as read
from custom_metrics.judge import write_met as write

# Enough criteria to be interrupted between.
CASES = tuple(
    Case(f"finance-{n}", tuple(Item(5, (ACCURACY, UTILITY)[c % 2], n * c % 5 in (1, 2))
                               for c in range(6)))
    for n in range(1, 9)
)  # fmt: skip

PATIENCE = 20.0  # seconds until a test gives up waiting


def call(text: str = "Is it met?", conversation: str = "document") -> JudgeCall[Met]:
    return JudgeCall(
        messages=lambda: [{"role": "user", "content": text}],
        read=read,
        conversation=conversation,
        label=text,
        answer="an answer",
        criteria=("a criterion",),
        write=write,
    )


def calls(count: int, first: int = 0) -> list[JudgeCall[Met]]:
    """Questions of one conversation each."""
    return [call(f"Question {n}?", f"document {n}") for n in range(first, first + count)]


@contextmanager
def judge_at(url: str, **settings: Any) -> Iterator[Judge]:
    """A judge of its own that asks the server at ``url``."""
    judge = Judge(JudgeConfig(**{"model": "judge", "base_url": url, "max_retries": 1, **settings}))
    try:
        yield judge
    finally:
        judge.close()


def ask(judge: Judge, asked: Sequence[JudgeCall[Met]]) -> list[Outcome[Met]]:
    return [future.result(PATIENCE) for future in judge.submit(asked)]


def verdicts(outcomes: Sequence[Outcome[Met]]) -> list[bool | None]:
    """Whether each criterion was found met; None where there is no verdict."""
    return [None if o.value is None else o.value.met for o in outcomes]


def forget_judges() -> None:
    """Close the judges that runs in this process share: the next run makes its own."""
    for judge in engine._shared.values():
        judge.close()
    engine._shared.clear()


def kept(path: Path) -> list[tuple[str, int]]:
    """``(text, usable)`` of every reply in a judge's store."""
    with closing(sqlite3.connect(path)) as connection:
        return list(connection.execute("SELECT text, usable FROM replies ORDER BY rowid"))


def wait_until(happened: Callable[[], bool], patience: float = 40.0) -> None:
    until = time.monotonic() + patience
    while not happened():
        assert time.monotonic() < until, "it never happened"
        time.sleep(0.01)
