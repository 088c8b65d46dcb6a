"""The batch that a queue gives next: who goes with the first, and as how many rows it runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from genrec.batch_cost import BatchCost

T = TypeVar("T")
Rows = Callable[[int], int]  # how many rows a batch of so many requests runs as
Alike = Callable[[T, T], bool]  # whether two may run together
TURNS = 4  # batches that a queue is looked through for requests of like length; older ones go first anyway


@dataclass(frozen=True)
class Waiting(Generic[T]):
    """A request in the queue."""

    item: T
    tokens: int
    since: float  # on the clock
    due: float  # on the clock: who comes first where deadlines decide
    expected: float  # when it will be done, as estimated; inf: nothing is learnt from it


@dataclass(frozen=True, eq=False)
class Running(Generic[T]):
    """A batch that runs."""

    requests: list[Waiting[T]]
    tokens: int  # rows that are padding included
    begun: float  # on the clock
    offered: bool = False


def nearest(
    queue: Sequence[Waiting[T]], most: int, room: int, alike: Alike[T] | None = None
) -> list[Waiting[T]]:
    """The first, and those nearest to it in length: at most `most`, and `room` tokens as they are padded."""
    first = queue[0]
    near = sorted(
        [each for each in queue[1 : TURNS * most] if alike is None or alike(first.item, each.item)],
        key=lambda each: (abs(each.tokens - first.tokens), each.since),
    )
    batch, longest = [first], first.tokens
    for each in near:
        longest = max(longest, each.tokens)
        if len(batch) == most or (len(batch) + 1) * longest > room:
            break
        batch.append(each)
    return batch


def whole_rows(batch: list[Waiting[T]], rows: Rows, cost: BatchCost) -> list[Waiting[T]]:
    """The first of a batch that fill their rows, if what would be padding costs more than one batch more."""
    padding = rows(len(batch)) - len(batch)
    if cost.seconds(0, padding * longest(batch)) <= cost.seconds(1, 0):
        return batch
    full = max(count for count in range(1, len(batch) + 1) if rows(count) == count)
    return batch[:full]


def tokens_of(batch: Sequence[Waiting[T]], rows: Rows | None) -> int:
    """Tokens of a batch, with those of rows that are padding."""
    own = sum(each.tokens for each in batch)
    return own + (rows(len(batch)) - len(batch)) * longest(batch) if rows else own


def longest(batch: Sequence[Waiting[T]]) -> int:
    """Tokens of the longest."""
    return max(each.tokens for each in batch)
