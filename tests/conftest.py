"""Every test runs away from the user's own caches, keys and settings."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import lm_eval.utils
import pytest
from asking import forget_judges
from rows import FINANCE, LEGAL, World, write_data
from stub_server import StubServer

SHARED = Path(__file__).resolve().parents[2] / "shared"
_NOT_FOR_TESTS = ("RUBRIC_", "OPENAI_", "AZURE_OPENAI_", "HF_", "LMEVAL_")


@pytest.fixture(autouse=True)
def _clean_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(_NOT_FOR_TESTS):
            monkeypatch.delenv(name)
    monkeypatch.setenv("RUBRIC_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    # Nothing may leave this machine: whatever tries fails at once, and servers are on loopback.
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("RUBRIC_GITHUB_RAW", "http://127.0.0.1:9")
    monkeypatch.setenv("OPENAI_API_KEY", "test-key")  # the harness's API models want one
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True)
def _own_logging() -> Iterator[None]:
    """A run in this process sets up the harness's logging on the stream of its test, which the
    tests after it would write to when it is closed."""
    yield
    logger = logging.getLogger("lm_eval")
    logger.handlers.clear()
    logger.propagate = True
    lm_eval.utils._LOGGING_CONFIGURED = False


@pytest.fixture(autouse=True)
def _own_judges() -> Iterator[None]:
    """Runs in this process share their judges, and no test another one's."""
    yield
    forget_judges()


@pytest.fixture
def shared() -> Path:
    """The reference material beside the checkout; the test is skipped where it is absent."""
    if not SHARED.is_dir():
        pytest.skip("the reference data (../shared) is not on this machine")
    return SHARED


@pytest.fixture
def official_prompts(shared: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = shared / "reference" / "prompts"
    monkeypatch.setenv("RUBRIC_PROMPTS_DIR", str(folder))
    return folder


@pytest.fixture
def official_data(shared: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = shared / "data"
    monkeypatch.setenv("RUBRIC_DATA_DIR", str(folder))
    return folder


@pytest.fixture
def small_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The PRBench of :mod:`rows` as the data."""
    folder = write_data(tmp_path / "data", finance=FINANCE, legal=LEGAL)
    monkeypatch.setenv("RUBRIC_DATA_DIR", str(folder))
    return folder


@pytest.fixture
def world() -> World:
    """Its answers and verdicts."""
    return World()


@pytest.fixture
def server(world: World) -> Iterator[StubServer]:
    """A server that is both its model and its judge."""
    with StubServer(world.respond, models=("model", "judge")) as running:
        yield running
