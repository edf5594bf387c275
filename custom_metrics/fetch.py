"""Files of the benchmarks' own repositories, at a pinned commit, checked and kept.

Nothing that is fetched is ever run.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

import requests

from custom_metrics.errors import FetchError

_TIMEOUT_S = 60


def cache_folder() -> Path:
    """Where this package keeps what it fetches: ``RUBRIC_CACHE_DIR``, else the user's cache."""
    chosen = os.environ.get("RUBRIC_CACHE_DIR")
    if chosen:
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "lm-eval-rubrics"


def github_file(repository: str, commit: str, path: str) -> str:
    """The text of one file of a public repository at one commit.

    ``RUBRIC_GITHUB_RAW`` names a mirror of ``https://raw.githubusercontent.com``.
    Raises :class:`FetchError` with the address and the reason.
    """
    mirror = os.environ.get("RUBRIC_GITHUB_RAW") or "https://raw.githubusercontent.com"
    url = f"{mirror.rstrip('/')}/{repository}/{commit}/{path}"
    try:
        response = requests.get(url, timeout=_TIMEOUT_S)
        response.raise_for_status()
    except requests.RequestException as error:
        raise FetchError(f"could not fetch {url}: {type(error).__name__}") from error
    return response.content.decode("utf-8")


def sha256(text: str) -> str:
    """SHA-256 of ``text`` as UTF-8, in hexadecimal."""
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def keep(path: Path, text: str) -> None:
    """Write ``text`` to ``path`` whole or not at all, so that several processes may do it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(
        "w", encoding="utf-8", newline="", dir=path.parent, delete=False
    ) as file:
        file.write(text)
    os.replace(file.name, path)
