"""The first call of a conversation goes alone, its siblings follow, others fill the room."""

from __future__ import annotations

import re
import threading
import time
from collections import Counter

import pytest
from asking import PATIENCE, ask, call, judge_at, verdicts
from stub_server import Received, Reply, StubServer, content_filtered, server_error, verdict

from custom_metrics.judge.order import PrefixOrder

Item = tuple[str, int]


def order_of(*items: Item) -> PrefixOrder[Item]:
    order = PrefixOrder[Item](lambda item: item[0])
    for item in items:
        order.add(item)
    return order


def all_ready(order: PrefixOrder[Item]) -> list[Item]:
    return [order.take() for _ in range(len(order))]


# --- the queue itself ----------------------------------------------------------------------------


def test_the_first_of_a_conversation_is_alone() -> None:
    order = order_of(("a", 1), ("a", 2), ("a", 3))
    assert all_ready(order) == [("a", 1)]
    with pytest.raises(IndexError):
        order.take()


def test_the_siblings_follow_in_their_order_once_the_first_is_back() -> None:
    order = order_of(("a", 1), ("a", 2), ("a", 3))
    order.returned(order.take())
    assert all_ready(order) == [("a", 2), ("a", 3)]


def test_other_conversations_fill_the_room_meanwhile() -> None:
    order = order_of(("a", 1), ("a", 2), ("b", 1), ("b", 2), ("c", 1))
    assert all_ready(order) == [("a", 1), ("b", 1), ("c", 1)]
    order.returned(("b", 1))
    assert all_ready(order) == [("b", 2)]
    order.returned(("a", 1))
    assert all_ready(order) == [("a", 2)]


def test_siblings_go_before_conversations_that_wait_while_their_prefix_is_fresh() -> None:
    order = order_of(("a", 1), ("a", 2), ("a", 3), ("b", 1), ("c", 1))
    order.returned(order.take())
    assert all_ready(order) == [("a", 2), ("a", 3), ("b", 1), ("c", 1)]


def test_a_conversation_that_was_answered_before_goes_at_once() -> None:
    order = order_of(("a", 1))
    order.returned(order.take())
    for number in (2, 3):
        order.add(("a", number))
    assert all_ready(order) == [("a", 2), ("a", 3)]


def test_a_sibling_added_while_the_first_is_away_is_held_back_too() -> None:
    order = order_of(("a", 1))
    first = order.take()
    order.add(("a", 2))
    assert len(order) == 0
    order.returned(first)
    assert all_ready(order) == [("a", 2)]


def test_drain_takes_out_what_is_ready_and_what_is_held_back() -> None:
    order = order_of(("a", 1), ("a", 2), ("b", 1), ("b", 2))
    order.take()
    assert sorted(order.drain()) == [("a", 2), ("b", 1), ("b", 2)]
    order.returned(("a", 1))
    assert len(order) == 0


# --- on the wire ---------------------------------------------------------------------------------

_NAMES = re.compile(r"conversation (\d+), question (\d+)")


class PrefixCache:
    """A server with a prefix cache: a conversation is in it once a call of it was answered.

    ``early`` are the calls that came while none of their conversation had been answered.
    """

    def __init__(self, delay: float) -> None:
        self.delay = delay
        self.order: list[Item] = []
        self.early: Counter[str] = Counter()
        self._answered: dict[str, float] = {}

    def respond(self, received: Received) -> Reply:
        found = _NAMES.search(received.prompt)
        assert found
        conversation, now = found[1], time.monotonic()
        self.order.append((conversation, int(found[2])))
        hit = self._answered.get(conversation, float("inf")) <= now
        if not hit:
            self.early[conversation] += 1
            self._answered.setdefault(conversation, now + self.delay)
        return Reply(
            verdict(int(found[2]) % 2 == 0),
            delay=self.delay,
            prompt_tokens=2000,
            cached_tokens=1920 if hit else 0,
        )


def questions(conversations: int, each: int) -> list[Item]:
    return [(str(c), q) for c in range(conversations) for q in range(each)]


def test_one_miss_a_conversation_at_full_concurrency() -> None:
    cache = PrefixCache(delay=0.04)
    asked = questions(conversations=30, each=6)
    with StubServer(cache.respond) as server, judge_at(server.url, concurrency=16) as judge:
        outcomes = ask(judge, [call(f"conversation {c}, question {q}", c) for c, q in asked])
        line = judge.settle()
    assert verdicts(outcomes) == [q % 2 == 0 for _, q in asked]
    assert cache.early == {str(c): 1 for c in range(30)}
    assert sorted(cache.order) == sorted(asked)
    assert server.peak == 16
    assert f"{180 * 2000} tokens in ({150 * 1920} cached)" in line


def test_no_second_call_of_a_conversation_before_the_first_ones_reply_even_when_it_fails() -> None:
    arrivals: list[tuple[str, float]] = []

    def respond(received: Received) -> Reply:
        arrivals.append((received.prompt, time.monotonic()))
        first = len(arrivals) == 1
        return server_error() if first else Reply(verdict(True), delay=0.5)

    with StubServer(respond) as server, judge_at(server.url, concurrency=8) as judge:
        outcomes = ask(judge, [call(f"Question {n}?", "one") for n in range(4)])
    assert verdicts(outcomes) == [True] * 4
    assert [text for text, _ in arrivals[:2]] == ["Question 0?"] * 2
    assert arrivals[2][1] - arrivals[1][1] >= 0.5
    assert server.peak == 3  # the siblings together


def test_a_conversation_whose_first_call_came_from_the_store_still_goes_one_first() -> None:
    cache = PrefixCache(delay=0.05)
    asked = [call(f"conversation 1, question {q}", "1") for q in range(5)]
    with StubServer(cache.respond) as server:
        with judge_at(server.url) as judge:
            ask(judge, asked[:1])
        cache = PrefixCache(delay=0.05)
        server.responder = cache.respond
        with judge_at(server.url) as judge:
            ask(judge, asked)
    assert cache.early == {"1": 1}
    assert len(cache.order) == 4


@pytest.mark.parametrize("why", ["cancelled", "refused"])
def test_a_first_call_that_was_never_answered_does_not_open_the_way_for_all(why: str) -> None:
    cache = PrefixCache(delay=0.1)

    def respond(received: Received) -> Reply:
        if "refused" in received.prompt:
            return content_filtered()
        return cache.respond(received)

    asked = [call(f"conversation 1, question {q}", "1") for q in range(5)]
    with StubServer(respond) as server, judge_at(server.url, concurrency=8) as judge:
        if why == "refused":
            asked[0] = call("To be refused.", "1")
            futures = judge.submit(asked)
        else:
            held = threading.Event()
            judge._loop.call_soon_threadsafe(held.wait, PATIENCE)  # no call starts until then
            futures = judge.submit(asked)
            assert futures[0].cancel()
            held.set()
        for future in futures[1:]:
            future.result(PATIENCE)
    assert cache.early == {"1": 1}
