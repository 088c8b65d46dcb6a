"""Measurements in turns: all arms once per round, so that a slow minute of the machine hits every one of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

A = TypeVar("A")
K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class Spread(NamedTuple):
    """The middle of repeated measurements, and the ends that `extremes` or `quartiles` say."""

    median: float
    low: float
    high: float


def order(arms: Sequence[A], number: int) -> list[A]:
    """The arms as they come in round `number`: turned around every other time, begun one later every second time.

    So nobody is always first, and nobody always comes after the same neighbour.
    """
    first = number // 2 % max(len(arms), 1)
    turned = [*arms[first:], *arms[:first]]
    return turned[::-1] if number % 2 else turned


def interleaved(arms: Sequence[A], rounds: int, label: str = "") -> Iterator[tuple[int, A]]:
    """(round, arm), every arm once per round; with a `label` it shows its progress."""
    from genrec.progress import counting  # here: the image with a GPU has no tqdm

    with counting(label, rounds * len(arms), "turn", leave=False, disable=not label) as bar:
        for number in range(rounds):
            for arm in order(arms, number):
                yield number, arm
                bar.update()


def in_turns(
    arms: Mapping[K, Callable[[], T]], rounds: int, *, warm_ups: int = 0, label: str = ""
) -> dict[K, list[T]]:
    """What every arm gave, round by round; rounds that warm up come first and are left out."""
    given: dict[K, list[T]] = {name: [] for name in arms}
    for number, name in interleaved([*arms], warm_ups + rounds, label):
        found = arms[name]()
        if number >= warm_ups:
            given[name].append(found)
    return given


def timed(work: Callable[[], T]) -> tuple[float, T]:
    """Seconds that a call took, and what it gave."""
    begun = time.perf_counter()
    given = work()
    return time.perf_counter() - begun, given


def repeated(work: Callable[[], object], repeats: int) -> list[float]:
    """Seconds of each of `repeats` calls; one call before them warms up (first touch, thread start, JIT)."""
    work()
    return [timed(work)[0] for _ in range(repeats)]


def extremes(values: Sequence[float]) -> Spread:
    """Median, least and most: for a few rounds."""
    return Spread(float(np.median(values)), float(min(values)), float(max(values)))


def quartiles(values: Sequence[float]) -> Spread:
    """Median and quartiles: for many repeats, of which the machine spoils some."""
    low, middle, high = np.quantile(values, (0.25, 0.5, 0.75))
    return Spread(float(middle), float(low), float(high))
