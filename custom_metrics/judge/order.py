"""In which order calls are sent: the first of a conversation alone, its siblings when it is back.

Servers keep the prefix of a prompt that they have answered and serve it far faster and cheaper the
next time; calls that arrive together all miss it. Pure data structure, nothing asynchronous.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class PrefixOrder(Generic[T]):
    """A queue of items, each of a conversation that ``conversation_of`` names."""

    def __init__(self, conversation_of: Callable[[T], str]) -> None:
        self._conversation_of = conversation_of
        self._ready: deque[T] = deque()
        self._held: dict[str, list[T]] = {}
        self._warm: set[str] = set()

    def __len__(self) -> int:
        """How many items could be taken now; those held back do not count."""
        return len(self._ready)

    def add(self, item: T) -> None:
        conversation = self._conversation_of(item)
        if conversation in self._warm:
            self._ready.append(item)
        elif conversation in self._held:
            self._held[conversation].append(item)
        else:
            self._held[conversation] = []
            self._ready.append(item)

    def take(self) -> T:
        """The next item. Raises IndexError if none is ready."""
        return self._ready.popleft()

    def returned(self, item: T, *, answered: bool = True) -> None:
        """``item`` is done. If it was answered its prefix is known and its siblings go next, else
        the first of them goes ahead in its stead."""
        conversation = self._conversation_of(item)
        held = self._held.pop(conversation, None)
        if answered:
            self._warm.add(conversation)
        if answered and held:
            self._ready.extendleft(reversed(held))
        elif held:
            self._ready.appendleft(held[0])
            self._held[conversation] = held[1:]

    def drain(self) -> Iterator[T]:
        """Take everything out, what is held back included."""
        while self._ready:
            yield self._ready.popleft()
        for items in self._held.values():
            yield from items
        self._held.clear()
