"""What a judge was asked, what that cost, and when it is enough."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

from custom_metrics.judge.calls import Usage
from custom_metrics.judge.config import Prices


class Budget:
    """What several judges may spend together in one run. Safe to use from their threads."""

    def __init__(self, max_calls: int | None, max_cost: float | None) -> None:
        self.max_calls, self.max_cost = max_calls, max_cost
        self.ledgers: list[Ledger] = []
        self.lock = threading.Lock()

    @property
    def spent(self) -> str | None:
        """Why no further call may be sent, or None."""
        calls = sum(ledger.calls + ledger.reserved for ledger in self.ledgers)
        cost = sum(ledger.cost or 0.0 for ledger in self.ledgers)
        return _spent(calls, self.max_calls, cost, self.max_cost)


def _spent(
    calls: int, max_calls: int | None, cost: float | None, max_cost: float | None
) -> str | None:
    if max_calls is not None and calls >= max_calls:
        return f"max_calls ({max_calls}) is reached"
    if max_cost is not None and (cost or 0.0) >= max_cost:
        return f"max_cost ({max_cost:g}) is reached"
    return None


@dataclass
class Ledger:
    """Counts of one run. Calls are requests that were sent, the repeated ones among them.

    ``shared`` is what this judge and others may spend together.
    """

    prices: Prices | None = None
    max_calls: int | None = None
    max_cost: float | None = None
    shared: Budget | None = None
    calls: int = 0
    reserved: int = 0
    from_store: int = 0
    retried: int = 0
    failed: int = 0
    usage: Usage = field(default_factory=Usage)
    first: float = 0.0
    last: float = 0.0

    def __post_init__(self) -> None:
        if self.shared is not None:
            self.shared.ledgers.append(self)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "shared": None}  # what is shared stays in its process

    def reserve(self) -> str | None:
        """Set one request aside, or say why none may be sent any more."""
        with self.shared.lock if self.shared else nullcontext():
            why = self.spent
            self.reserved += why is None
            return why

    def sent(self, again: bool) -> None:
        """A request goes out that was reserved."""
        self.reserved -= 1
        self.calls += 1
        self.retried += again
        self.first = self.first or time.monotonic()

    def received(self, usage: Usage) -> None:
        """A reply came back."""
        self.usage += usage
        self.last = time.monotonic()

    @property
    def cost(self) -> float | None:
        """In the prices' currency; None without prices."""
        return None if self.prices is None else self.prices.cost(self.usage)

    @property
    def spent(self) -> str | None:
        """Why no further call may be sent, or None."""
        calls = self.calls + self.reserved
        own = _spent(calls, self.max_calls, self.cost, self.max_cost)
        return own or (self.shared.spent if self.shared else None)

    def record(self) -> dict[str, Any]:
        """The counts for a results file."""
        counts: dict[str, Any] = {
            "calls": self.calls,
            "from_store": self.from_store,
            "retried": self.retried,
            "failed": self.failed,
            "prompt_tokens": self.usage.prompt,
            "cached_tokens": self.usage.cached,
            "completion_tokens": self.usage.completion,
        }
        return counts if self.cost is None else {**counts, "cost": self.cost}

    def line(self) -> str:
        """One line for the end of a run."""
        seconds = max(0.0, self.last - self.first)
        cost = "" if self.cost is None else f", cost {self.cost:.4f}"
        rate = f" ({self.calls / seconds:.0f} calls/s)" if seconds > 1 else ""
        return (
            f"{self.calls} calls, {self.from_store} from the store, {self.retried} retried, "
            f"{self.failed} failed, {self.usage.prompt} tokens in ({self.usage.cached} cached), "
            f"{self.usage.completion} out, {seconds:.1f} s{rate}{cost}"
        )


@dataclass(frozen=True)
class PanelLedger:
    """The ledgers of several judges, by their names, read as one."""

    ledgers: Mapping[str, Ledger]

    @property
    def spent(self) -> str | None:
        """Why no further call may be sent to one of them at least, or None."""
        return next((why for ledger in self.ledgers.values() if (why := ledger.spent)), None)

    def record(self) -> dict[str, Any]:
        """The sums of all counts, the cost of those that have prices, and each judge's own."""
        each = {name: ledger.record() for name, ledger in self.ledgers.items()}
        names = dict.fromkeys(name for counts in each.values() for name in counts)
        sums = {name: sum(counts.get(name, 0) for counts in each.values()) for name in names}
        return {**sums, "judges": each} if len(each) > 1 else sums

    def line(self) -> str:
        """One line for the end of a run."""
        if len(self.ledgers) == 1:
            return next(iter(self.ledgers.values())).line()
        return "; ".join(f"{name}: {ledger.line()}" for name, ledger in self.ledgers.items())


def total(ledgers: Sequence[Ledger | PanelLedger]) -> Ledger | PanelLedger:
    """What several processes were asked to spend together, in the time of the slowest."""
    panels = [one for one in ledgers if isinstance(one, PanelLedger)]
    if not panels:
        return _total([one for one in ledgers if isinstance(one, Ledger)])
    return PanelLedger({n: _total([one.ledgers[n] for one in panels]) for n in panels[0].ledgers})


def _total(ledgers: Sequence[Ledger]) -> Ledger:
    first = ledgers[0]
    if len(ledgers) == 1:
        return first
    return Ledger(
        first.prices,
        calls=sum(one.calls for one in ledgers),
        from_store=sum(one.from_store for one in ledgers),
        retried=sum(one.retried for one in ledgers),
        failed=sum(one.failed for one in ledgers),
        usage=sum((one.usage for one in ledgers[1:]), first.usage),
        last=max(max(0.0, one.last - one.first) for one in ledgers),  # each has its own clock
    )
