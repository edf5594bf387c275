"""When the next call may go out: rate limits, waits between attempts, and outages."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable

from custom_metrics.errors import JudgeError

logger = logging.getLogger("lm_eval.rubrics")

# So many failures in a row, whichever calls they belong to, and it is not the calls. Fewer where
# fewer are in flight: no call may have used up its retries by then.
_OUTAGE_AFTER, _OUTAGE_AFTER_AT_LEAST = 16, 4
_FIRST_PROBE_S, _LONGEST_PROBE_S = 1.0, 15.0
_LINE_EVERY_S = 60.0
_LONGEST_WAIT_S = 60.0
_LONGEST_RETRY_AFTER_S = 600.0


def wait_before_retry(attempts: int, asked_for: float | None) -> float:
    """Seconds before the next attempt: what the server asks for, else exponential with jitter."""
    if asked_for is not None:
        return min(asked_for, _LONGEST_RETRY_AFTER_S) + random.uniform(0, 0.5)
    return float(min(_LONGEST_WAIT_S, 0.5 * 2 ** (attempts - 1)) * random.uniform(0.5, 1))


class Pace:
    """Lets calls go when they may. To be used on one event loop.

    While the endpoint is down one call at a time tries it, the others wait; that uses up nobody's
    retries. After ``max_outage`` seconds :meth:`failed` raises :class:`JudgeError`.

    Where failures may be the calls' own fault ``answers`` tells: it asks the endpoint something
    harmless, and says whether it is well.
    """

    def __init__(
        self,
        endpoint: str,
        answers: Callable[[], Awaitable[bool]],
        *,
        rpm: int | None,
        tpm: int | None,
        max_outage: float,
        concurrency: int,
    ) -> None:
        self._endpoint = endpoint
        self._answers = answers
        self._outage_after = max(_OUTAGE_AFTER_AT_LEAST, min(_OUTAGE_AFTER, concurrency))
        self._seconds_a_call = 60 / rpm if rpm else 0.0
        self._seconds_a_token = 60 / tpm if tpm else 0.0
        self._next = 0.0
        self._max_outage = max_outage
        self._unreached = self._probes = 0
        self._failed: set[str] = set()
        self._first_failure = self._last_line = 0.0
        self._down = self._probing = self._asking = self._released = False
        self._probe_wait = _FIRST_PROBE_S
        self._changed = asyncio.Event()

    @property
    def down(self) -> bool:
        """Whether the endpoint is taken to be down altogether."""
        return self._down

    async def turn(self, tokens: int) -> bool:
        """Wait until a call of about so many ``tokens`` may go out.

        True if it is the one that tries an endpoint that is down; :meth:`tried` has to follow.
        """
        while self._down and not self._released:
            if not self._probing:
                self._probing = True
                try:
                    await asyncio.sleep(self._probe_wait)
                except asyncio.CancelledError:
                    self.tried()
                    raise
                return True
            await self._changed.wait()
        spacing = self._seconds_a_call + self._seconds_a_token * tokens
        if spacing:
            now = time.monotonic()
            self._next = max(now, self._next)
            wait, self._next = self._next - now, self._next + spacing
            await asyncio.sleep(wait)
        return False

    def tried(self) -> None:
        """The call that tried the endpoint is over, whatever came of it; another may try."""
        self._probing = False
        self._changed.set()
        self._changed.clear()

    def release(self) -> None:
        """Nobody has to wait any more: the run stops."""
        self._released = True
        self.tried()

    def answered(self) -> None:
        """The endpoint is well: it has answered, whatever it said."""
        self._unreached = 0
        self._failed.clear()
        if self._down:
            self._down = False
            logger.warning("The judge at %s is back", self._endpoint)
            self.tried()

    async def failed(self, call: str, reason: str, *, reached: bool, trying: bool) -> None:
        """A request of ``call`` failed. ``reached`` says that the endpoint answered, with a fault
        that may be the call's; ``trying`` is what :meth:`turn` said.
        """
        if not self._failed:
            self._first_failure = time.monotonic()
        self._failed.add(call)
        self._unreached += not reached
        self._probes += self._down and trying
        if not self._down and max(len(self._failed), self._unreached) < self._outage_after:
            return
        if self._may_be_the_calls(reached=reached, trying=trying):
            if self._asking:
                return
            self._asking = True
            try:
                well = await self._answers()
            finally:
                self._asking = False
            if well:
                self.answered()
                return
        self._wait_for_it(reason, trying=trying)

    def _may_be_the_calls(self, *, reached: bool, trying: bool) -> bool:
        """Whether the failures may be the calls' own: of few calls, or answered with a fault.

        Prompts that a server always breaks on are what is left at the end of a run.
        """
        if self._down:
            return trying and (reached or self._probes > 1)
        return min(len(self._failed), self._unreached) < self._outage_after

    def _wait_for_it(self, reason: str, *, trying: bool) -> None:
        now = time.monotonic()
        if not self._down:
            self._down, self._probe_wait, self._probes = True, _FIRST_PROBE_S, 0
            self._last_line = now - _LINE_EVERY_S
        elif trying:
            self._probe_wait = min(2 * self._probe_wait, _LONGEST_PROBE_S)
        outage = now - self._first_failure
        if now - self._last_line >= _LINE_EVERY_S:
            self._last_line = now
            logger.warning(
                "The judge at %s is down for %.0f s (%s); waiting for it, for %.0f s at most",
                self._endpoint, outage, reason, self._max_outage,
            )  # fmt: skip
        if outage >= self._max_outage:
            raise JudgeError(
                f"the judge at {self._endpoint} has been down for {outage:.0f} s ({reason}). What "
                "it said before is kept: run the same command again when it is back"
            )
