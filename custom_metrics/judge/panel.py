"""More than one opinion on every call: several judges, or one that is asked several times.

A :class:`Panel` is used as a single ``Judge`` is. Each call goes to every judge, as often as its
settings say, and comes back with what their verdicts come to, and with each of them.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from custom_metrics.errors import JudgeError
from custom_metrics.judge.calls import JudgeCall, Outcome, Request, Vote
from custom_metrics.judge.config import JudgeConfig
from custom_metrics.judge.ledger import Budget, PanelLedger

if TYPE_CHECKING:
    from custom_metrics.judge.engine import Judge

logger = logging.getLogger("lm_eval.rubrics")

T = TypeVar("T")


class Panel:
    """Asks several judges, whose settings are ``config.panel``. Safe to use from any thread.

    ``budget`` is what they may spend together; each may have one of its own beside it.
    """

    def __init__(self, config: JudgeConfig, judges: Sequence[Judge], budget: Budget) -> None:
        self.config = config
        self._judges = dict(zip(config.judge_names, judges, strict=True))
        self._budget = budget
        self._opinions, self._least = config.opinions, config.least_judges
        self._mourned: set[str] = set()
        self._given_up: JudgeError | None = None
        for name, judge in self._judges.items():
            _warn_of_equal_replies(name, judge.config)

    @property
    def ledger(self) -> PanelLedger:
        """What the judges were asked in this run."""
        return PanelLedger({name: judge.ledger for name, judge in self._judges.items()})

    @property
    def dropped(self) -> set[str]:
        """Parameters that are left out because an endpoint does not support them."""
        return {f"{name}: {p}" for name, judge in self._judges.items() for p in judge.dropped}

    @property
    def stopped(self) -> bool:
        """Whether one of the judges has given up; a new panel has all of them again."""
        return any(judge.stopped for judge in self._judges.values())

    def check(self) -> None:
        """Find out, once, whether the judges can be asked at all. Raises :class:`JudgeError`.

        One that cannot be asked now is a mistake that is best mended now, unless ``min_judges``
        was set and says that so many do.
        """
        failures: dict[str, JudgeError] = {}
        for name, judge in self._judges.items():
            try:
                judge.check()
            except JudgeError as error:
                failures[name] = error
                if self.config.min_judges is None:
                    raise
        if len(self._judges) - len(failures) < self.config.least_judges:
            raise next(iter(failures.values()))
        for name, failure in failures.items():
            logger.warning("The judge %s may have to be done without: %s", name, failure)

    def holds(self, calls: Sequence[JudgeCall[Any]]) -> bool:
        """Whether the store has every opinion on each of ``calls``."""
        return all(judge.holds(_repeated(judge, calls)) for judge in self._judges.values())

    def missing(self, calls: Sequence[JudgeCall[Any]]) -> list[Request]:
        """What would be sent for opinions that the store lacks; see :meth:`Judge.missing`."""
        judges = self._judges.values()
        return [r for judge in judges for r in judge.missing(_repeated(judge, calls))]

    def submit(self, calls: Sequence[JudgeCall[T]]) -> list[Future[Outcome[T]]]:
        """Start ``calls``; each future gets what the opinions come to, or what stopped the panel.

        The repeats of a call follow it, so that the judge's server has its prefix by then.
        """
        futures = [judge.submit(_repeated(judge, calls)) for judge in self._judges.values()]
        each = [judge.config.repeats for judge in self._judges.values()]
        return [
            self._gather(
                call,
                [f for of_judge, k in zip(futures, each, strict=True)
                 for f in of_judge[number * k : (number + 1) * k]],
            )
            for number, call in enumerate(calls)
        ]  # fmt: skip

    def settle(self) -> str:
        """The run's line of counts; counting and budgets begin anew."""
        line = self.ledger.line()
        self._budget.ledgers.clear()
        for judge in self._judges.values():
            judge.settle()
        return line

    def close(self) -> None:
        """Close every judge."""
        for judge in self._judges.values():
            judge.close()

    # --- opinions ---

    def _gather(
        self, call: JudgeCall[T], futures: Sequence[Future[Outcome[T]]]
    ) -> Future[Outcome[T]]:
        combined: Future[Outcome[T]] = Future()
        left = itertools.count(len(futures) - 1, -1)

        def done(_: Future[Outcome[T]]) -> None:
            if next(left) > 0:  # in one step, whichever judge's thread this is
                return
            try:
                combined.set_result(self._combined(call, futures))
            except Exception as error:
                combined.set_exception(error)

        for future in futures:
            future.add_done_callback(done)
        return combined

    def _combined(self, call: JudgeCall[T], futures: Sequence[Future[Outcome[T]]]) -> Outcome[T]:
        """Raises :class:`JudgeError` where the panel cannot go on."""
        votes = tuple(
            Vote(judge, repeat, self._opinion(judge, future))
            for (judge, repeat), future in zip(self._opinions, futures, strict=True)
        )
        outcome = combine(call, votes, self._least)
        if outcome.failed and outcome.asked and self.config.on_failure == "raise":
            error = JudgeError(
                f"the judge call for {call.label} failed for good ({outcome.failure}), and "
                "on_failure is raise"
            )
            self._stop(error)
            raise error
        return outcome

    def _opinion(self, name: str, future: Future[Outcome[T]]) -> Outcome[T]:
        """One opinion; a judge that has given up has none, and the others decide if they can."""
        error = future.exception()
        if error is None:
            return future.result()
        if not isinstance(error, JudgeError):
            raise error
        if self._given_up is not None:
            raise self._given_up
        going = sum(not judge.stopped for judge in self._judges.values())
        if going < self._least:
            if len(self._judges) > 1:
                error = JudgeError(
                    f"{going} of {len(self._judges)} judges can go on, and "
                    f"{self._least} are needed: {error}"
                )
            self._stop(error)
            raise error
        if name not in self._mourned:
            self._mourned.add(name)
            logger.error("The judge %s has given up, and the others decide: %s", name, error)
        return Outcome(0, failure=str(error))

    def _stop(self, error: JudgeError) -> None:
        self._given_up = error
        for judge in self._judges.values():
            judge.stop(error)


def combine(call: JudgeCall[T], votes: tuple[Vote[T], ...], least_judges: int) -> Outcome[T]:
    """What ``votes`` come to if ``least_judges`` of their judges have given a verdict.

    An opinion that a budget left out will be there the next time: until then nothing is decided.
    """
    assert call.combine is not None, "a call that several judges are asked says how they combine"
    attempts = sum(vote.outcome.attempts for vote in votes)
    waiting = next((vote.outcome.failure for vote in votes if not vote.outcome.asked), None)
    if waiting is not None:
        return Outcome(attempts, failure=waiting, asked=False, votes=votes)
    values = [vote.outcome.value for vote in votes if vote.outcome.value is not None]
    heard = {vote.judge for vote in votes if not vote.outcome.failed}
    if len(heard) >= least_judges:
        return Outcome(attempts, call.combine(values), votes=votes)
    asked = dict.fromkeys(vote.judge for vote in votes)
    reasons = {vote.judge: vote.outcome.failure for vote in votes if vote.judge not in heard}
    why = "; ".join(f"{judge}: {reason}" for judge, reason in reasons.items())
    short = f"{len(heard)} of {len(asked)} judges gave a verdict, {least_judges} are needed ({why})"
    return Outcome(attempts, failure=short if len(asked) > 1 else why, votes=votes)


def _repeated(judge: Judge, calls: Sequence[JudgeCall[T]]) -> list[JudgeCall[T]]:
    return [replace(call, repeat=n) for call in calls for n in range(judge.config.repeats)]


def _warn_of_equal_replies(name: str, config: JudgeConfig) -> None:
    if config.repeats == 1 or config.backend == "lexical":
        return
    greedy = config.temperature == 0 or (config.in_process and not config.temperature)
    if greedy or "seed" in (config.extra_body or {}):
        logger.warning(
            "The judge %s is asked %d times without chance (%s): its replies may well be equal, "
            "and say nothing of how sure it is",
            name,
            config.repeats,
            "temperature 0" if greedy else "a fixed seed",
        )
