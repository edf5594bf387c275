"""The real commands, run as a user runs them, and what they wrote."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TIMEOUT_S = 500


@dataclass(frozen=True)
class Finished:
    """A command that has ended."""

    code: int
    output: str
    errors: str

    @property
    def text(self) -> str:
        return self.output + self.errors


def command(
    program: str,
    *arguments: str,
    environment: Mapping[str, str] | None = None,
    bin_folder: Path | None = None,
    cwd: Path | None = None,
) -> Finished:
    """Run ``program`` of this environment (or that of ``bin_folder``) to its end."""
    folder = bin_folder or Path(sys.executable).parent
    done = subprocess.run(
        [str(folder / program), *arguments],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **(environment or {})},
        cwd=cwd,
        check=False,
    )
    return Finished(done.returncode, done.stdout, done.stderr)


def only(folder: Path, pattern: str) -> Path:
    """The one file below ``folder`` that matches."""
    found = sorted(folder.rglob(pattern))
    assert len(found) == 1, f"{pattern}: {found}"
    return found[0]


def results(folder: Path) -> dict[str, Any]:
    """The results file that a run wrote below ``folder``."""
    return dict(json.loads(only(folder, "results_*.json").read_text(encoding="utf-8")))


def samples(folder: Path, task: str) -> list[dict[str, Any]]:
    """The samples of ``task`` that a run wrote below ``folder``."""
    path = only(folder, f"samples_{task}_*.jsonl")
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


def metrics(found: Mapping[str, Any], name: str) -> dict[str, Any]:
    """``{metric: value}`` of a task or group, the filter's name left out."""
    return {
        key.removesuffix(",none"): value
        for key, value in found["results"][name].items()
        if key.endswith(",none")
    }


def judge_arguments(url: str, **settings: object) -> Sequence[str]:
    """``--judge`` for a server at ``url``."""
    chosen: dict[str, object] = {"model": "judge", "base_url": url, **settings}
    return ["--judge", *(f"{key}={value}" for key, value in chosen.items())]


def judge_metadata(url: str, **settings: object) -> Sequence[str]:
    """The same for stock ``lm_eval``."""
    return ["--metadata", json.dumps({"judge": {"model": "judge", "base_url": url, **settings}})]


def model_arguments(url: str, concurrent: int = 16) -> Sequence[str]:
    """A chat API at ``url`` as the model under test."""
    return [
        "--model",
        "local-chat-completions",
        "--model_args",
        f"model=model,base_url={url}/chat/completions,num_concurrent={concurrent},max_retries=1",
    ]
