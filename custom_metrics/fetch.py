"""Files of the benchmarks' own repositories, at a pinned commit, checked and kept.

Nothing that is fetched is ever run.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import requests

from custom_metrics.errors import FetchError
from custom_metrics.masking import mask_addresses

_TIMEOUT_S = 60


def cache_folder() -> Path:
    """Where this package keeps what it fetches: ``RUBRIC_CACHE_DIR``, else the user's cache."""
    chosen = os.environ.get("RUBRIC_CACHE_DIR")
    if chosen:
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "lm-eval-rubrics"


def github_file(repositories: Sequence[str], commit: str, path: str) -> bytes:
    """One file of a public repository at one commit; ``repositories`` are names of the same one.

    ``RUBRIC_GITHUB_RAW`` names a mirror of ``https://raw.githubusercontent.com``.
    Raises :class:`FetchError` with the address, its user and query masked, and the reason.
    """
    mirror = os.environ.get("RUBRIC_GITHUB_RAW") or "https://raw.githubusercontent.com"
    failures = []
    for repository in repositories:
        url = f"{mirror.rstrip('/')}/{repository}/{commit}/{path}"
        try:
            response = requests.get(url, timeout=_TIMEOUT_S)
            response.raise_for_status()
        except requests.RequestException as error:
            failures.append(f"{mask_addresses(url)}: {_reason(error)}")
        else:
            return response.content
    raise FetchError(f"could not fetch {'; '.join(failures)}")


def _reason(error: requests.RequestException) -> str:
    status = getattr(error.response, "status_code", None)
    return f"HTTP {status}" if status else type(error).__name__


def sha256(data: str | bytes) -> str:
    """SHA-256 in hexadecimal; of text as UTF-8."""
    return hashlib.sha256(data.encode("utf-8") if isinstance(data, str) else data).hexdigest()


def keep(path: Path, data: bytes) -> None:
    """Write ``data`` to ``path`` whole or not at all, so that several processes may do it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(data)
    os.replace(file.name, path)
