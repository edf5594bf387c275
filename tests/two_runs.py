"""Real runs to be read back and compared: two models and two judges, over HTTP.

What the judges say is set here, so that every right value can be computed from it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from asking import forget_judges
from commands import judge_arguments, only
from rows import FINANCE, LEGAL, Case, World, write_answers, write_data
from stub_server import Received, Reply, StubServer

from custom_metrics.cli import main

CASES = FINANCE + LEGAL
_FLIPPED = {
    "finance-1-c0", "finance-1-c1", "finance-2-c1", "finance-3-c0", "legal-1-c0", "legal-2-c2",
    "legal-2-c1",
}  # fmt: skip
# What the judge says of the second model, and the other judge of the first one. finance-1 and
# finance-2 lose, legal-3 stays as it is, the others gain.
OTHER_CASES = tuple(
    replace(
        case,
        items=tuple(
            replace(item, met=item.met != (case.tag(number) in _FLIPPED))
            for number, item in enumerate(case.items)
        ),
    )
    for case in CASES
)


def respond(call: Received) -> Reply:
    """As ``judge``, who likes the second model's answers otherwise, or as ``other``."""
    cases = OTHER_CASES if call.model == "other" or "second" in call.prompt else CASES
    return World(cases).respond(call)


def answers(model: str, cases: Sequence[Case] = CASES) -> Mapping[str, str]:
    return {case.id: f"What the {model} model says to {case.id}." for case in cases}


def make_run(
    folder: Path, model: str, /, *more: str, tasks: str = "prbench", **judge: object
) -> Path:
    """A run of ``tasks`` by ``lm-eval-rubrics run``; the folder with its files."""
    folder.mkdir(parents=True, exist_ok=True)
    path = write_answers(folder / f"{model}.json", answers(model))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RUBRIC_DATA_DIR", str(write_data(folder, finance=FINANCE, legal=LEGAL)))
        patch.setenv("RUBRIC_CACHE_DIR", str(folder / "cache"))
        with StubServer(respond, models=("judge", "other")) as server:
            settings: dict[str, object] = {"model": "judge", "prompt": "builtin", **judge}
            done = main(
                ["run", "--model", "prefilled", "--model_args", f"path={path}", "--tasks", tasks,
                 "--output_path", str(folder / "out"), "--log_samples", *more,
                 *judge_arguments(server.url, **settings)]
            )  # fmt: skip
        forget_judges()
    assert done == 0
    return only(folder / "out", "results_*.json").parent
