"""Keeping calls in flight, asking again, and stopping when there is no point in going on.

All calls of a run share one event loop in a thread of its own, so that the judge works beside a
loop that runs already, and one pool of ``concurrency`` workers.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import random
import threading
from collections import deque
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any, Protocol, TypeVar, cast

from custom_metrics.errors import JudgeError
from custom_metrics.judge.calls import JudgeCall, Outcome, Reply, Unreadable
from custom_metrics.judge.client import (
    FinalFailure,
    OpenAIClient,
    ParameterDropped,
    PassingFailure,
    warn_of_ignored_environment,
)
from custom_metrics.judge.config import JudgeConfig
from custom_metrics.judge.lexical import LexicalClient

logger = logging.getLogger(__name__)

T = TypeVar("T")

# An unreadable reply was paid for, and a judge that does not keep to the form rarely starts to.
MAX_UNREADABLE = 3
# With this many calls failed for good and none read, the fault is not with the calls.
HOPELESS_AFTER = 20
_LONGEST_WAIT_S = 60.0
_LONGEST_RETRY_AFTER_S = 600.0
_CLOSING_S = 2.0


class Client(Protocol):
    """What the engine asks of a judge."""

    async def check(self) -> None: ...

    async def send(self, call: JudgeCall[Any], max_tokens: int | None = None, /) -> Reply: ...

    async def close(self) -> None: ...


class Judge:
    """Asks one judge, as its settings say. Safe to use from any thread."""

    def __init__(self, config: JudgeConfig) -> None:
        self.config = config
        config.api_key()  # a missing key is an error now, not in the thread later
        warn_of_ignored_environment(config)
        self._waiting: deque[tuple[JudgeCall[Any], Future[Outcome[Any]]]] = deque()
        self._workers: set[asyncio.Task[None]] = set()
        self._read = self._failed = 0
        self._stopped: JudgeError | None = None
        self._client: Client | None = None
        self._checked = self._closed = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="judge", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    @property
    def stopped(self) -> bool:
        """Whether the judge has given up; a new one is needed then."""
        return self._stopped is not None

    def check(self) -> None:
        """Find out, once, whether the judge can be asked at all. Raises :class:`JudgeError`."""
        if not self._checked:
            self._run(self._check())
            self._checked = True

    def submit(self, calls: Sequence[JudgeCall[T]]) -> list[Future[Outcome[T]]]:
        """Start ``calls``; each future gets its outcome, or the error that stopped the judge."""
        futures: list[Future[Outcome[T]]] = [Future() for _ in calls]
        if self._closed:
            for future in futures:
                future.set_exception(JudgeError("the judge was closed"))
        else:
            pairs = list(zip(calls, futures, strict=True))
            self._loop.call_soon_threadsafe(self._enqueue, pairs)
        return futures

    def close(self) -> None:
        """Stop what is in flight and end the thread."""
        atexit.unregister(self.close)
        self._closed = True
        if self._thread.is_alive():
            future = asyncio.run_coroutine_threadsafe(self._shut_down(), self._loop)
            with contextlib.suppress(FutureTimeoutError):
                future.result(timeout=_CLOSING_S)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(timeout=_CLOSING_S)
            if not self._thread.is_alive():
                self._loop.close()

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    # --- on the loop ---

    def _enqueue(self, pairs: list[tuple[JudgeCall[Any], Future[Outcome[Any]]]]) -> None:
        if self._stopped:
            for _, future in pairs:
                future.set_exception(self._stopped)
            return
        self._waiting.extend(pairs)
        for _ in range(min(self.config.concurrency - len(self._workers), len(pairs))):
            self._workers.add(self._loop.create_task(self._work()))

    def _client_on_loop(self) -> Client:
        if self._client is None:
            lexical = self.config.backend == "lexical"
            self._client = LexicalClient() if lexical else OpenAIClient(self.config)
        return self._client

    async def _check(self) -> None:
        await self._client_on_loop().check()

    async def _work(self) -> None:
        try:
            await self._work_off()
        finally:
            # At once, not in a callback: a call that is submitted meanwhile needs a worker.
            self._workers.discard(cast("asyncio.Task[None]", asyncio.current_task()))

    async def _work_off(self) -> None:
        while self._waiting:
            call, future = self._waiting.popleft()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                outcome = await self._ask(call)
                self._count(outcome)
            except asyncio.CancelledError:
                future.set_exception(JudgeError("the judge was closed before this call was done"))
                raise
            except JudgeError as error:
                future.set_exception(error)
                self._stop(error)
            except Exception as error:  # a fault of this program must not leave anyone waiting
                future.set_exception(error)
            else:
                future.set_result(outcome)

    async def _ask(self, call: JudgeCall[T]) -> Outcome[T]:
        """Ask until there is a verdict, or no hope of one."""
        client = self._client_on_loop()
        attempts = unreadable = 0
        room = limit = self.config.max_tokens or call.max_tokens
        while True:
            attempts += 1
            wait = 0.0
            try:
                reply = await client.send(call, room)
                if reply.cut and limit and room == limit:
                    room = 2 * limit  # once more with twice the room
                    raise Unreadable("the reply was cut off at the token limit")
                if reply.cut and not call.readable_when_cut:
                    raise Unreadable("the reply was cut off at the token limit")
                return Outcome(attempts, value=call.read(reply.text))
            except ParameterDropped:
                continue  # at once, and no failure of this call
            except FinalFailure as error:
                return Outcome(attempts, failure=str(error))
            except Unreadable as error:
                reason = f"unread: {error}"
                unreadable += 1
            except PassingFailure as error:
                reason = str(error)
                wait = _wait(attempts, error.retry_after)
            if attempts > self.config.max_retries or unreadable >= MAX_UNREADABLE:
                return Outcome(attempts, failure=reason)
            await asyncio.sleep(wait)

    def _count(self, outcome: Outcome[Any]) -> None:
        self._read += not outcome.failed
        self._failed += outcome.failed
        if outcome.failed and self.config.on_failure == "raise":
            raise JudgeError(
                f"a judge call failed for good ({outcome.failure}), and on_failure is raise"
            )
        if not self._read and self._failed >= HOPELESS_AFTER:
            raise JudgeError(
                f"the judge {self.config.model} at {self.config.endpoint} gave no verdict in "
                f"{self._failed} calls; the last one: {outcome.failure}"
            )

    def _stop(self, error: JudgeError) -> None:
        """Give up: nothing that waits is sent any more. What is in flight may still come back."""
        self._stopped = self._stopped or error
        while self._waiting:
            _, future = self._waiting.popleft()
            if future.set_running_or_notify_cancel():
                future.set_exception(self._stopped)

    async def _shut_down(self) -> None:
        self._stop(JudgeError("the judge was closed"))
        workers = list(self._workers)
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        if self._client is not None:
            await self._client.close()


_shared: dict[tuple[str, str | None], Judge] = {}


def shared_judge(config: JudgeConfig) -> Judge:
    """The judge for these settings, one for all tasks of the process; a new one if it gave up."""
    key = (config.model_dump_json(), config.api_key())
    if key not in _shared or _shared[key].stopped:
        _shared[key] = Judge(config)
    return _shared[key]


def _wait(attempts: int, asked_for: float | None) -> float:
    """Seconds before the next attempt: what the server asks for, else exponential with jitter."""
    if asked_for is not None:
        return min(asked_for, _LONGEST_RETRY_AFTER_S) + random.uniform(0, 0.5)
    return float(min(_LONGEST_WAIT_S, 0.5 * 2 ** (attempts - 1)) * random.uniform(0.5, 1))
