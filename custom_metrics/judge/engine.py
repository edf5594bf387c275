"""Keeping calls in flight, asking again, and stopping when there is no point in going on.

All calls of a run share one event loop in a thread of its own, so that the judge works beside a
loop that runs already, and one pool of ``concurrency`` workers.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import sys
import threading
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar, cast

from custom_metrics.errors import JudgeError
from custom_metrics.judge.calls import JudgeCall, Outcome, Reply, Request, Unreadable
from custom_metrics.judge.client import (
    FinalFailure,
    OpenAIClient,
    ParameterDropped,
    PassingFailure,
    request_key,
    request_of,
    warn_of_ignored_environment,
)
from custom_metrics.judge.config import JudgeConfig
from custom_metrics.judge.in_process import InProcessClient
from custom_metrics.judge.ledger import Budget, Ledger
from custom_metrics.judge.lexical import LexicalClient
from custom_metrics.judge.order import PrefixOrder
from custom_metrics.judge.pace import Pace, wait_before_retry
from custom_metrics.judge.panel import Panel
from custom_metrics.judge.store import Keeper, Kept, PaidReply, Store, store_path

logger = logging.getLogger("lm_eval.rubrics")

T = TypeVar("T")

# An unreadable reply was paid for, and a judge that does not keep to the form rarely starts to.
MAX_UNREADABLE = 3
# With this many calls failed and none read, the fault is not with the calls. Nor is it with so many
# in a row once some were read, if they are not all about a few conversations that do not fit, say.
HOPELESS_AFTER = 20
HOPELESS_IN_A_ROW = 50
_OF_CONVERSATIONS = 10
_CLOSING_S = 1.0  # for each of two steps
# A reply of a model in this process whose call has no limit of its own.
_IN_PROCESS_TOKENS = 1024
_CHARACTERS_A_TOKEN = 4
_MOST_BYTES_A_TOKEN = 16

_HARMLESS_S = 30.0
_HARMLESS = JudgeCall[str](
    messages=lambda: [{"role": "user", "content": "Say ok."}],
    read=str,
    conversation="",
    label="",
    answer="",
    criteria=(),
    write=lambda _: "",
)


class Client(Protocol):
    """What the engine asks of a judge."""

    async def check(self) -> None: ...

    async def send(self, call: JudgeCall[Any], max_tokens: int | None, /) -> Reply: ...

    async def close(self) -> None: ...


@dataclass(eq=False)
class _Item:
    """A call on its way, with everyone who waits for it and what became of it so far.

    ``room`` is how many tokens its reply may have, ``tries`` counts the failures that spend its
    retries. ``put_off`` says that it waits, or has waited, for the others to be done.
    """

    call: JudgeCall[Any]
    key: str
    room: int | None
    futures: list[Future[Outcome[Any]]] = field(default_factory=list)
    attempts: int = 0
    tries: int = 0
    unreadable: int = 0
    cut: Reply | None = None
    reason: str = ""
    filtered: bool = False
    put_off: bool = False

    def wanted(self) -> bool:
        """Whether anyone still waits; who gave up is forgotten."""
        self.futures = [f for f in self.futures if f.running() or f.set_running_or_notify_cancel()]
        return bool(self.futures)

    def resolve(self, outcome: Outcome[Any] | None, error: BaseException | None = None) -> None:
        if not self.wanted():
            return
        for future in self.futures:
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(cast("Outcome[Any]", outcome))


class Judge:
    """Asks one judge, as its settings say. Safe to use from any thread."""

    def __init__(
        self, config: JudgeConfig, *, needs_key: bool = True, budget: Budget | None = None
    ) -> None:
        self.config = config
        self._budget = budget
        if needs_key:
            config.api_key()  # a missing key is an error now, not in the thread later
        warn_of_ignored_environment(config)
        self.ledger = self._new_ledger()
        path = store_path() if config.backend != "lexical" else None
        self._store = Store(path) if path else None
        self._keeper = Keeper(self._store, self._could_not_keep) if self._store else None
        # A model in this process gets all calls as one batch: nothing waits for a sibling.
        self._order = PrefixOrder[_Item](
            lambda item: item.key if config.in_process else item.call.conversation
        )
        self._most = sys.maxsize if config.in_process else config.concurrency
        self._by_key: dict[str, _Item] = {}
        self._put_off: list[_Item] = []
        self._received: set[str] = set()
        self._workers: set[asyncio.Task[None]] = set()
        self._read = self._failed = self._in_hand = 0
        # Conversations of the calls that failed since the last verdict.
        self._in_vain: list[str] = []
        self._heard = False
        self._stopped: JudgeError | None = None
        self._client: Client | None = None
        self._pace: Pace | None = None
        self._checked = self._closed = self._warned = self._unkept = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="judge", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def _new_ledger(self) -> Ledger:
        config = self.config
        return Ledger(
            config.prices,
            max_calls=config.max_calls,
            max_cost=config.max_cost,
            shared=self._budget,
        )

    @property
    def dropped(self) -> set[str]:
        """Parameters that are left out because the endpoint does not support them."""
        return self._client.dropped if isinstance(self._client, OpenAIClient) else set()

    @property
    def stopped(self) -> bool:
        """Whether the judge has given up; a new one is needed then."""
        return self._stopped is not None

    def check(self) -> None:
        """Find out, once, whether the judge can be asked at all. Raises :class:`JudgeError`."""
        if not self._checked:
            self.config.api_key()
            self._run(self._check())
            self._checked = True

    def holds(self, calls: Sequence[JudgeCall[Any]]) -> bool:
        """Whether the store has a verdict for each of ``calls``."""
        by_key = self._by_keys(calls)
        kept = self._find(list(by_key))
        return all(_verdict_in(call, kept.get(key, ())) for key, call in by_key.items())

    def missing(self, calls: Sequence[JudgeCall[Any]]) -> list[Request]:
        """What would be sent for those of ``calls`` that have no verdict in the store, each once.

        A kept reply without a verdict is served no more: another one is to take its place.
        """
        by_key = self._by_keys(calls)
        kept = self._find(list(by_key))
        missing = {k: call for k, call in by_key.items() if not _verdict_in(call, kept.get(k, ()))}
        if self._store is not None:
            self._store.retire([key for key in missing if key in kept])
        return [
            Request(key, *request_of(self.config, call.messages(), self._room(call), call.schema))
            for key, call in missing.items()
        ]

    def _by_keys(self, calls: Sequence[JudgeCall[Any]]) -> dict[str, JudgeCall[Any]]:
        return {self._key(call): call for call in calls}

    def _find(self, keys: Sequence[str]) -> dict[str, list[Kept]]:
        return self._store.find(keys) if self._store else {}

    def submit(self, calls: Sequence[JudgeCall[T]]) -> list[Future[Outcome[T]]]:
        """Start ``calls``; each future gets its outcome, or the error that stopped the judge.

        What the store has is there at once.
        """
        futures: list[Future[Outcome[T]]] = [Future() for _ in calls]
        if self._closed:
            for future in futures:
                future.set_exception(JudgeError("the judge was closed"))
            return futures
        items = [
            _Item(call, self._key(call), self._room(call), [future])
            for call, future in zip(calls, futures, strict=True)
        ]
        missing = self._serve(items)
        if missing:
            self._loop.call_soon_threadsafe(self._enqueue, missing)
        return futures

    def _serve(self, items: Sequence[_Item]) -> list[_Item]:
        """Resolve what the store has; the rest is returned."""
        kept = self._find([item.key for item in items])
        missing: list[_Item] = []
        for item in items:
            outcome = _verdict_in(item.call, kept.get(item.key, ()))
            if outcome is None:
                missing.append(item)
            else:
                self.ledger.from_store += 1
                self._read += 1
                item.resolve(outcome)
        return missing

    def stop(self, error: JudgeError) -> None:
        """Give up, because ``error`` makes what this judge might say useless."""
        if not self._closed:
            self._loop.call_soon_threadsafe(self._stop, error)

    def settle(self) -> str:
        """The run's line of counts; counting and budgets begin anew."""
        line, self.ledger = self.ledger.line(), self._new_ledger()
        return line

    def close(self) -> None:
        """Stop what is in flight and end the thread. What was received is kept."""
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
        if self._store is not None:
            self._store.close()

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def _key(self, call: JudgeCall[Any]) -> str:
        room = self._room(call)
        return request_key(self.config, call.messages(), room, call.schema, call.repeat)

    def _room(self, call: JudgeCall[Any]) -> int | None:
        default = _IN_PROCESS_TOKENS if self.config.in_process else None
        return self.config.max_tokens or call.max_tokens or default

    def _tokens(self, call: JudgeCall[Any]) -> int:
        """About how many tokens a call has, where a limit on them makes that matter."""
        if not self.config.tpm:
            return 0
        return sum(len(m["content"]) for m in call.messages()) // _CHARACTERS_A_TOKEN

    # --- on the loop ---

    def _enqueue(self, items: list[_Item]) -> None:
        # What was answered since :meth:`submit` looked is not asked for a second time.
        late = [item for item in items if item.key in self._received]
        rest = [item for item in items if item.key not in self._received]
        for item in rest + self._serve(late):
            if self._stopped:
                item.resolve(None, self._stopped)
            elif item.key in self._by_key:  # the same question: one answer serves both
                self._by_key[item.key].futures += item.futures
            else:
                self._by_key[item.key] = item
                self._order.add(item)
        self._feed()

    def _feed(self) -> None:
        if self._put_off and not self._order and not self._in_hand:  # all others are done
            again, self._put_off = self._put_off, []
            for item in again:
                self._order.add(item)
        for _ in range(min(self._most - len(self._workers), len(self._order))):
            self._workers.add(self._loop.create_task(self._work()))

    def _client_on_loop(self) -> Client:
        if self._client is None:
            self._client = _client_for(self.config)
        return self._client

    def _pace_on_loop(self) -> Pace:
        if self._pace is None:
            config = self.config
            self._pace = Pace(
                config.endpoint,
                self._answers,
                rpm=config.rpm,
                tpm=config.tpm,
                max_outage=config.max_outage,
                concurrency=config.concurrency,
            )
        return self._pace

    async def _check(self) -> None:
        await self._client_on_loop().check()

    async def _answers(self) -> bool:
        """Whether the endpoint answers something that no server can object to."""
        try:
            asked = self._client_on_loop().send(_HARMLESS, 16)
            await asyncio.wait_for(asked, min(self.config.timeout, _HARMLESS_S))
        except asyncio.TimeoutError:
            return False
        except PassingFailure as error:
            return error.busy
        except (FinalFailure, ParameterDropped):
            pass
        return True

    async def _work(self) -> None:
        try:
            while self._order:
                await self._work_off(self._order.take())
        finally:
            # At once, not in a callback: a call that is submitted meanwhile needs a worker.
            self._workers.discard(cast("asyncio.Task[None]", asyncio.current_task()))

    async def _work_off(self, item: _Item) -> None:
        outcome: Outcome[Any] | None = None
        error: BaseException | None = None
        self._in_hand += 1
        try:
            if item.wanted():
                outcome = await self._ask(item)
                self._count(item, outcome)
        except asyncio.CancelledError:
            error = JudgeError("the judge was closed before this call was done")
            raise
        except JudgeError as stop:
            error = stop
            self._stop(stop)
        except Exception as fault:  # a fault of this program must not leave anyone waiting
            error = fault
        finally:
            self._in_hand -= 1
            if outcome is None and error is None and item.wanted():
                self._put_off.append(item)
            else:
                self._by_key.pop(item.key, None)
                item.resolve(outcome, error)
            refused = error is not None or (outcome is not None and outcome.refused)
            self._order.returned(item, answered=item.attempts > 0 and not refused)
            self._feed()

    async def _ask(self, item: _Item) -> Outcome[Any] | None:
        """Ask until there is a verdict, or no hope of one.

        None if an attempt is left for when all other calls are done: a bad minute is over then.
        """
        client, pace, call = self._client_on_loop(), self._pace_on_loop(), item.call
        limit, tokens = self._room(call), self._tokens(call)
        while True:
            ledger = self.ledger
            if why := ledger.reserve():
                pace.release()  # the others have nothing to wait for either
                return Outcome(item.attempts, failure=f"not asked: {why}", asked=False)
            trying = await pace.turn(tokens)
            if self._stopped:
                raise self._stopped
            if pace.down and not trying:  # let go because the budget is spent, not to be sent
                ledger.reserved -= 1
                why = "not asked: the budget is spent"
                return Outcome(item.attempts, failure=why, asked=False)
            ledger.sent(again=item.attempts > 0)
            item.attempts, wait = item.attempts + 1, 0.0
            try:
                try:
                    reply = await client.send(call, item.room)
                finally:
                    if trying:
                        pace.tried()
                pace.answered()
                self.ledger.received(reply.usage)
                self._warn_of_cut_prompt(reply)
                if reply.cut and limit and item.room == limit:
                    item.room, item.cut = 2 * limit, reply  # once more with twice the room
                    self._keep(item, reply, usable=False)
                    continue
                value = _read(call, reply)
            except ParameterDropped:
                pace.answered()
                continue  # at once, and no failure of this call
            except FinalFailure as error:
                pace.answered()
                if item.cut is not None:  # so much room is not to be had: what there was has to do
                    with contextlib.suppress(Unreadable):
                        return Outcome(item.attempts, _read(call, item.cut))
                item.filtered = error.filtered
                return Outcome(item.attempts, failure=str(error), refused=True)
            except Unreadable as error:
                self._keep(item, reply, usable=False)
                item.reason = f"unread: {error}"
                item.unreadable, item.tries = item.unreadable + 1, item.tries + 1
                if reply.constrained and not reply.text.strip():
                    call = item.call = replace(call, schema=None)
            except PassingFailure as error:
                item.reason = str(error)
                if error.busy:
                    pace.answered()
                else:  # raises when it has lasted too long
                    await pace.failed(item.key, item.reason, reached=error.reached, trying=trying)
                if pace.down:
                    continue  # nobody's retries are spent on an outage
                item.tries += 1
                wait = wait_before_retry(item.tries, error.retry_after)
            else:
                self._keep(item, reply, usable=True)
                self._received.add(item.key)
                return Outcome(item.attempts, value)
            if item.tries > self.config.max_retries or item.unreadable >= MAX_UNREADABLE:
                return Outcome(item.attempts, failure=item.reason)
            await asyncio.sleep(wait)
            if self._is_last_try(item):
                item.put_off = True
                return None

    def _is_last_try(self, item: _Item) -> bool:
        """Whether the one try that ``item`` has left is better kept until the others are done."""
        if item.put_off or self.config.on_failure == "raise" or self.config.max_retries < 2:
            return False
        return item.tries == self.config.max_retries or item.unreadable == MAX_UNREADABLE - 1

    def _keep(self, item: _Item, reply: Reply, *, usable: bool) -> None:
        if self._keeper is None:
            return
        config = self.config
        paid = PaidReply(
            item.key, reply.text, usable=usable, attempts=item.attempts, usage=reply.usage,
            model=config.name, endpoint=config.endpoint,
        )  # fmt: skip
        self._keeper.keep(paid)

    def _could_not_keep(self, error: Exception) -> None:
        if not self._unkept and self._store is not None:
            logger.error("Replies are not kept any more in %s: %s", self._store.path, error)
        self._unkept = True

    def _warn_of_cut_prompt(self, reply: Reply) -> None:
        """Some servers (Ollama) cut a long prompt without a word; their count of tokens tells."""
        tokens = reply.usage.prompt
        if not self._warned and tokens and reply.request_bytes > _MOST_BYTES_A_TOKEN * tokens:
            self._warned = True
            logger.warning(
                "The judge counts %d tokens in a request of %d bytes: it seems to cut long "
                "prompts, and its verdicts mean nothing then (Ollama: raise num_ctx)",
                tokens,
                reply.request_bytes,
            )

    def _count(self, item: _Item, outcome: Outcome[Any] | None) -> None:
        """Take note of what became of ``item``, None if it is put off.

        Raises :class:`JudgeError` if there is no point in going on.
        """
        if outcome is not None and not outcome.asked:
            return
        if outcome is not None and not outcome.failed:
            self._read, self._heard = self._read + 1, True
            self._in_vain.clear()
            return
        reason = item.reason if outcome is None else outcome.failure
        if outcome is not None:
            self.ledger.failed += 1
            if self.config.on_failure == "raise":
                raise JudgeError(
                    f"the judge call for {item.call.label} failed for good ({reason}), and "
                    "on_failure is raise"
                )
            if item.put_off:  # counted then
                return
        self._failed += 1
        where = f"the judge {self.config.name} at {self.config.endpoint}"
        if not self._read and self._failed >= HOPELESS_AFTER:
            raise JudgeError(
                f"{where} gave no verdict in {self._failed} calls; the last one: {reason}"
            )
        if item.filtered:
            return
        self._in_vain.append(item.call.conversation)
        # Not where nothing was read but from the store: all that is left may be calls that fail.
        many = len(self._in_vain) >= HOPELESS_IN_A_ROW
        if many and self._heard and len(set(self._in_vain)) >= _OF_CONVERSATIONS:
            raise JudgeError(
                f"{where} gave verdicts before and none in the last {len(self._in_vain)} calls; "
                f"the last one: {reason}. What it said before is kept: mend that and run the same "
                "command again"
            )

    def _stop(self, error: JudgeError) -> None:
        """Give up: nothing that waits is sent any more. What is in flight may still come back."""
        self._stopped = self._stopped or error
        if self._pace is not None:
            self._pace.release()
        put_off, self._put_off = self._put_off, []
        for item in [*self._order.drain(), *put_off]:
            self._by_key.pop(item.key, None)
            item.resolve(None, self._stopped)

    async def _shut_down(self) -> None:
        self._stop(JudgeError("the judge was closed"))
        workers = list(self._workers)
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        if self._keeper is not None:
            self._keeper.flush()
        if self._client is not None:
            await self._client.close()


def _client_for(config: JudgeConfig) -> Client:
    if config.in_process:
        return InProcessClient(config)
    return LexicalClient() if config.backend == "lexical" else OpenAIClient(config)


def _read(call: JudgeCall[T], reply: Reply) -> T:
    if reply.cut and not call.readable_when_cut:
        raise Unreadable("the reply was cut off at the token limit")
    return _value_of(call, reply.text)


def _value_of(call: JudgeCall[T], text: str) -> T:
    """What the call reads in a reply; a reply that breaks its reader costs that call, no run."""
    try:
        return call.read(text)
    except Unreadable:
        raise
    except Exception as error:
        raise Unreadable(f"its reading failed ({type(error).__name__})") from error


def _verdict_in(call: JudgeCall[T], replies: Sequence[Kept]) -> Outcome[T] | None:
    """The first verdict in kept replies; one may come from a version that read otherwise."""
    for kept in replies:
        with contextlib.suppress(Unreadable):
            return Outcome(kept.attempts, _value_of(call, kept.text))
    return None


_shared: dict[tuple[str | None, ...], Judge | Panel] = {}


def shared_judge(config: JudgeConfig, *, needs_key: bool = True) -> Judge | Panel:
    """The judge for these settings, one for all tasks of the process; a new one if it gave up.

    Raises :class:`ConfigError` where a key is missing, unless it ``needs_key`` only later.
    """
    key = (config.model_dump_json(), *(member.find_api_key() for member in config.members))
    if key not in _shared or _shared[key].stopped:
        _shared[key] = _new_judge(config, needs_key)
    elif needs_key:
        for member in config.members:
            member.api_key()
    return _shared[key]


def _new_judge(config: JudgeConfig, needs_key: bool) -> Judge | Panel:
    if len(config.opinions) == 1:
        return Judge(config, needs_key=needs_key)
    budget = Budget(config.max_calls, config.max_cost)
    judges = [Judge(m, needs_key=needs_key, budget=budget) for m in config.panel]
    return Panel(config, judges, budget)
