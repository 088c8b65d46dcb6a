"""The figures of `genrec bench rank`: what each way took, ratios of the ways, null where they were not measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perf.kit import report
from perf.rank.ways import TOGETHER, Answer

BEST = ("greedy", "past", "hazard", "split", TOGETHER)


def summary(answers: dict[str, list[Answer]], slo_s: float) -> dict[str, Any]:
    """Figures of every way, and the ratios that the claims are of; None where no such way is among them."""
    ways = {}
    for name, given in answers.items():
        seconds = np.array([each.total_s for each in given])
        reused = sum(each.reuse.user + each.reuse.items for each in given)
        computed = sum(each.reuse.computed for each in given)
        ways[name] = {
            "rate": rates(answers)[name],
            "ms": 1e3 * float(np.median(seconds)),
            "reused_share": reused / (reused + computed),
            "computed_tokens": computed / len(given),
            "copied_bytes": sum(each.reuse.copied for each in given) / len(given),
            "choice_share": sum(each.choice_s for each in given) / seconds.sum(),
            "slo_rate": None if name == TOGETHER else rate_within(seconds, slo_s),
        }

    found = ratios({name: way["rate"] for name, way in ways.items()})
    within = ratios({name: way["slo_rate"] for name, way in ways.items() if name != TOGETHER})
    best = [way for name, way in ways.items() if name in BEST]
    return {
        "counted": len(next(iter(answers.values()))),
        **found,
        "reused_share": max((way["reused_share"] for way in best), default=None),
        "slo_rate_over_user_prefix": within["over_user_prefix"],
        "slo_rate_over_user_prefix_paper": within["over_user_prefix_paper"],
        "choice_share": max((way["choice_share"] for way in best), default=None),
        "ways": ways,
    }


def rates(answers: dict[str, list[Answer]]) -> dict[str, float]:
    """Requests a second of every way."""
    return {name: len(given) / sum(each.total_s for each in given) for name, given in answers.items()}


def ratios(figures: dict[str, float]) -> dict[str, float | None]:
    """The best way, and the best with the paper's orders, over the user's prefix alone and over recomputation.

    None where one of both is not among them, or has 0.
    """

    def ratio(over: str, of: Sequence[str]) -> float | None:
        found = [figures[name] for name in of if name in figures]
        return max(found) / figures[over] if found and figures.get(over) else None

    return {
        "over_user_prefix": ratio("user", BEST),
        "over_user_prefix_paper": ratio("user", BEST[:3]),
        "over_recompute": ratio("recompute", BEST),
        "over_recompute_paper": ratio("recompute", BEST[:3]),
    }


def rate_within(seconds: NDArray[np.float64], slo_s: float) -> float:
    """Requests a second at which 99 % of Poisson arrivals, served one after the other, wait and run at most `slo_s`."""
    gaps = np.random.default_rng(0).exponential(1.0, (20, len(seconds)))

    def holds(rate: float) -> bool:
        waits = []
        for row in gaps:
            free = 0.0
            arrivals = np.cumsum(row / rate)
            for at, takes in zip(arrivals, seconds, strict=True):
                free = max(free, at) + takes
                waits.append(free - at)
        return float(np.quantile(waits, 0.99)) <= slo_s

    low, high = 0.0, 1 / float(seconds.mean())
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def table(ways: dict[str, dict[str, Any]]) -> str:
    """For people."""
    head = [
        "",
        "requests/s",
        "ms",
        "least ms on average",
        "reused %",
        "tokens computed",
        "KB copied",
        "choice %",
        "requests/s in P99",
    ]
    rows = [
        [
            name, f"{w['rate']:.2f}", f"{w['ms']:.1f}", f"{w['least_ms']:.1f}",
            f"{100 * w['reused_share']:.0f}", f"{w['computed_tokens']:.0f}",
            f"{w['copied_bytes'] / 1024:.0f}", f"{100 * w['choice_share']:.2f}",
            "" if name == TOGETHER else f"{w['slo_rate']:.2f}",
        ]
        for name, w in ways.items()
    ]  # fmt: skip
    return report.columns(head, rows)
