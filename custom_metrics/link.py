"""Making the tasks known to the stock ``lm_eval`` of this environment, without a flag.

The harness has no plug-ins: it finds tasks in its own folder and where ``--include_path`` points,
and does not follow links. A tiny file in its folder that includes ours is found.
"""

from __future__ import annotations

from pathlib import Path

import lm_eval.tasks
import yaml

import lm_eval_tasks
from custom_metrics.errors import ConfigError

_FOLDER = "lm_eval_rubrics_linked"
_NOTE = "# Written by `lm-eval-rubrics link`; `lm-eval-rubrics unlink` removes it.\n"


def folder() -> Path:
    """The folder inside the harness's own that holds the linking files."""
    return Path(lm_eval.tasks.__file__).parent / _FOLDER


def link() -> list[str]:
    """Write one file a task and return the tasks' names. Raises :class:`ConfigError`."""
    names = []
    try:
        unlink()
        folder().mkdir()
        for path in sorted(Path(lm_eval_tasks.path()).glob("*/*.yaml")):
            name = _task_name(path)
            if name:
                text = _NOTE + yaml.safe_dump({"task": name, "include": str(path)})
                (folder() / f"{name}.yaml").write_text(text, encoding="utf-8")
                names.append(name)
    except OSError as error:
        raise ConfigError(
            f"{folder()} cannot be written ({error.strerror}); use `lm_eval --include_path "
            '"$(lm-eval-rubrics path)"` instead, which needs no right to write there'
        ) from None
    return names


def unlink() -> bool:
    """Remove what :func:`link` wrote, and nothing else. Whether there was anything."""
    if not folder().is_dir():
        return False
    try:
        for path in folder().glob("*.yaml"):
            if path.read_text(encoding="utf-8").startswith(_NOTE):
                path.unlink()
        folder().rmdir()
    except OSError as error:
        raise ConfigError(f"{folder()} cannot be removed ({error.strerror})") from None
    return True


def _task_name(path: Path) -> str | None:
    # The files' !function tags are for the harness; only the name is wanted here.
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("task:"):
            return line.removeprefix("task:").strip()
    return None
