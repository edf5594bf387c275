"""When the next call may go out: rate limits, waits between attempts, and outages."""

from __future__ import annotations

import asyncio
import logging
import random
import time

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
    """

    def __init__(
        self,
        endpoint: str,
        *,
        rpm: int | None,
        tpm: int | None,
        max_outage: float,
        concurrency: int,
    ) -> None:
        self._endpoint = endpoint
        self._outage_after = max(_OUTAGE_AFTER_AT_LEAST, min(_OUTAGE_AFTER, concurrency))
        self._seconds_a_call = 60 / rpm if rpm else 0.0
        self._seconds_a_token = 60 / tpm if tpm else 0.0
        self._next = 0.0
        self._max_outage = max_outage
        self._failures = 0
        self._first_failure = self._last_line = 0.0
        self._down = self._probing = self._released = False
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
        """The endpoint has answered, whatever it said."""
        self._failures = 0
        if self._down:
            self._down = False
            logger.warning("The judge at %s is back", self._endpoint)
            self.tried()

    def failed(self, reason: str, *, trying: bool) -> None:
        """The endpoint could not be reached. ``trying`` is what :meth:`turn` said of the call."""
        now = time.monotonic()
        if not self._failures:
            self._first_failure = now
        self._failures += 1
        if not self._down and self._failures < self._outage_after:
            return
        if not self._down:
            self._down, self._probe_wait = True, _FIRST_PROBE_S
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
