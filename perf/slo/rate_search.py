"""The highest rate that holds, with few measurements: even steps to the first failure, then halving."""

from __future__ import annotations

from collections.abc import Callable

from genrec.errors import InputError
from perf.slo.analyzer import Point

Measure = Callable[[float], Point]


def search(measure: Measure, start: float, stop: float, step: float, precision: float) -> list[Point]:
    """Measure start, start + step, ... up to `stop` or the first rate that fails; then halve the gap below
    it.

    Not a binary search from the outset: P99 is noisy, and one bad point in the middle would hide the upper
    half.
    Returns the points in the order in which they were measured. Raises InputError.
    """
    if not 0 < start <= stop or step <= 0 or precision <= 0:
        raise InputError("rates", f"are {start:g}:{stop:g}:{step:g}", "0 < START <= END, STEP > 0")
    points: list[Point] = []
    held, failed = 0.0, None
    number = 0
    while failed is None and (rate := start + number * step) <= stop * (1 + 1e-9):
        points.append(measure(rate))
        held, failed = (rate, None) if points[-1].held else (held, rate)
        number += 1
    while failed is not None and failed - held > precision:
        rate = (held + failed) / 2
        points.append(measure(rate))
        held, failed = (rate, failed) if points[-1].held else (held, rate)
    return points


def confirm(measure: Measure, points: list[Point], times: int) -> tuple[float, list[Point]]:
    """The highest rate that holds when measured `times` more, every time, and all those measurements.

    The search keeps the lucky side of the noise, so its end is too high; failing rates fall back to the next
    lower one that held. 0 when none holds.
    """
    tried: list[Point] = []
    for rate in sorted({point.rate for point in points if point.held}, reverse=True):
        again = []
        for _ in range(times):
            again.append(measure(rate))
            if not again[-1].held:
                break
        tried += again
        if all(point.held for point in again):
            return rate, tried
    return 0.0, tried
