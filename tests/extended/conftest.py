"""What the tests with real models share."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny Llama with random weights."""
    folder = tmp_path_factory.mktemp("tiny")
    script = Path(__file__).with_name("tiny_llama.py")
    subprocess.run([sys.executable, str(script), str(folder)], check=True, timeout=300)
    return folder
