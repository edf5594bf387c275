"""A command that runs while the test goes on, to be killed or interrupted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path


def _mind_interrupts() -> None:
    # Whoever runs the tests in the background of a shell has it ignore them, and hands that on.
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Running:
    """A command under way; what it says goes to a file."""

    def __init__(self, program: Sequence[str], log: Path) -> None:
        self._log = log
        with log.open("w", encoding="utf-8") as file:
            self.process = subprocess.Popen(
                list(program), stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=os.environ,
                preexec_fn=_mind_interrupts,
            )  # fmt: skip

    def send(self, number: int) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    def ended(self) -> bool:
        return self.process.poll() is not None

    def code(self, patience: float = 60) -> int:
        """Its exit code, once it has ended; minus the signal that killed it."""
        return self.process.wait(patience)

    @property
    def text(self) -> str:
        return self._log.read_text(encoding="utf-8")


@contextmanager
def running(program: str, *arguments: str, log: Path) -> Iterator[Running]:
    """``program`` of this environment; killed at the end if it has not ended by itself."""
    started = Running([str(Path(sys.executable).parent / program), *arguments], log)
    try:
        yield started
    finally:
        if not started.ended():
            started.process.kill()
            started.process.wait()
