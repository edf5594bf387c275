"""Task configurations for lm-evaluation-harness, one folder a benchmark."""

from __future__ import annotations

from pathlib import Path


def path() -> str:
    """The folder to give to ``lm_eval --include_path`` or ``TaskManager(include_path=…)``."""
    return str(Path(__file__).parent)
