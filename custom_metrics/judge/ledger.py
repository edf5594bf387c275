"""What a judge was asked, what that cost, and when it is enough."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from custom_metrics.judge.calls import Usage
from custom_metrics.judge.config import Prices


@dataclass
class Ledger:
    """Counts of one run. Calls are requests that were sent, the repeated ones among them."""

    prices: Prices | None = None
    max_calls: int | None = None
    max_cost: float | None = None
    calls: int = 0
    reserved: int = 0
    from_store: int = 0
    retried: int = 0
    failed: int = 0
    usage: Usage = field(default_factory=Usage)
    first: float = 0.0
    last: float = 0.0

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
        if self.max_calls is not None and self.calls + self.reserved >= self.max_calls:
            return f"max_calls ({self.max_calls}) is reached"
        if self.max_cost is not None and (self.cost or 0.0) >= self.max_cost:
            return f"max_cost ({self.max_cost:g}) is reached"
        return None

    def record(self) -> dict[str, float]:
        """The counts for a results file."""
        counts: dict[str, float] = {
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


def total(ledgers: Sequence[Ledger]) -> Ledger:
    """What several processes were asked to spend together, in the time of the slowest."""
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
