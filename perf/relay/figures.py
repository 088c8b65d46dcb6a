"""The figures of `genrec bench relay`: ratios of what was measured, null where it was not, and tables for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from perf.kit import report
from perf.kit.turns import extremes

INLINE, RELAY, RETURNING = "inline", "relay", "relay, returning"
FIXED, ANY = "two servers", "two servers, any"
SHARED, SHARED_CALLS = "shared backbone", "shared backbone, two calls"
TWO, TWO_RELAY = "two models", "two models, relay"
# Of the rates at one length: the ratio's name, the way, and over which.
RATIOS = {
    "slo_rate_ratio": (RELAY, INLINE),
    "slo_rate_ratio_second_tier_50": (RETURNING, INLINE),  # one memory is both tiers
    "slo_rate_ratio_shared_backbone": (SHARED, TWO),
    "slo_rate_ratio_shared_two_calls": (SHARED_CALLS, TWO),
    "slo_rate_ratio_shared_over_relay": (SHARED, TWO_RELAY),
    "slo_rate_ratio_affinity": (FIXED, ANY),
}
Rates = Mapping[tuple[str, str], float]


def ratio(value: float | None, base: float | None, least: float = 0.0) -> float | None:
    """None where either was not measured. Over `least`, from which on was searched, where the base held nothing."""
    if not value or base is None or not (base or least):
        return None
    return value / (base or least)


def figures_of(
    length: int, rounds: Sequence[Rates], rates: Rates, longest: Mapping[str, float],
    core_ms: Mapping[str, Sequence[float]], alone: Mapping[int, Mapping[str, float]], least: float,
) -> tuple[dict[str, Any], dict[str, Any]]:  # fmt: skip
    """Everything but the single loads, and (lowest, highest) of the ratios that were measured more than once.

    `rounds`: rates at `length`, by way; `rates`: (way, length) -> rate; `longest`: way -> tokens; `core_ms`: way ->
    core-milliseconds per request at each turn; `alone`: tokens -> ms of a ranking, inline and with a ready prefix.
    A way that holds less than `least` requests/s counts as `least`: ratios over it, named in `at_least`, are bounds.
    """
    figures: dict[str, Any] = {"at_least": []}
    spread = {}
    for name, (way, base) in RATIOS.items():
        bases = [each.get((base, str(length))) for each in rounds]
        found = [
            ratio(each.get((way, str(length))), of, least) for each, of in zip(rounds, bases, strict=True)
        ]
        if 0.0 in bases:
            figures["at_least"].append(name)
        known = [each for each in found if each is not None]
        figures[name] = median(known) if known else None
        if known:
            spread[name] = extremes(known)[1:]
    figures["longest_history_ratio"] = ratio(longest.get(RELAY), longest.get(INLINE))
    core = {way: median(turns) for way, turns in core_ms.items()}
    figures["compute_ratio"] = ratio(core.get(RELAY), core.get(INLINE))
    ready = {tokens: each["ready"] for tokens, each in alone.items()}
    figures["ready_growth"] = ratio(ready[max(ready)], ready[min(ready)])
    by_way: dict[str, dict[str, float]] = {}
    for (way, _), _rate in rounds[0].items():
        by_way.setdefault(way, {})[str(length)] = median(each[way, str(length)] for each in rounds)
    for (way, each), rate in rates.items():
        by_way.setdefault(way, {})[each] = rate
    return figures | {
        "rates": by_way, "longest": dict(longest), "core_ms": core,
        "alone": {str(tokens): dict(ms) for tokens, ms in alone.items()},
    }, spread  # fmt: skip


def tables(figures: Mapping[str, Any]) -> str:
    """For people."""
    lengths = list(dict.fromkeys(length for of in figures["rates"].values() for length in of))
    lengths.sort(key=lambda length: int(length) if length.isdecimal() else 1 << 30)
    rows = [
        [way, *(f"{of[length]:.1f}" if length in of else "" for length in lengths)]
        for way, of in figures["rates"].items()
    ]
    parts = [report.columns(["requests/s within the budgets", *lengths], rows)]
    alone = [[n, f"{ms['inline']:.1f}", f"{ms['ready']:.1f}"] for n, ms in figures["alone"].items()]
    parts.append(report.columns(["ranking alone, tokens", "inline ms", "prefix ready ms"], alone))
    parts.append(
        report.columns(
            ["longest history", "tokens"], [[w, f"{n:.0f}"] for w, n in figures["longest"].items()]
        )
    )
    parts.append(
        report.columns(["core-ms a request", ""], [[w, f"{ms:.1f}"] for w, ms in figures["core_ms"].items()])
    )
    return "\n\n".join(["", *parts, ""])
