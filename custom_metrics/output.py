"""Files that a command writes: whole or not at all, and one message where they cannot be."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

from custom_metrics.errors import ConfigError


@contextlib.contextmanager
def writing(where: str) -> Iterator[None]:
    """Raises :class:`ConfigError` that names ``where`` for what the system refuses in the block."""
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{where}: cannot be written ({error.strerror or error})") from None


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path beside ``path`` to write to, which becomes ``path`` if the block ends well.

    What stood there stays until then. Raises :class:`ConfigError` as :func:`writing`.
    """
    part = path.with_name(f"{path.name[:100]}.{uuid.uuid4().hex[:8]}.part")
    with writing(str(path)):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield part
            os.replace(part, path)
        finally:
            part.unlink(missing_ok=True)
