"""The figures of `genrec bench relay`: ratios of what was measured, null where it was not, and tables for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from perf.kit import report
from perf.kit.turns import extremes
from perf.relay.measure import MIXTURE, Rate, Spent

INLINE, RELAY, RETURNING, DISK = "inline", "relay", "relay, returning", "relay, returning from disk"
FIXED, ANY = "two servers", "two servers, any"
SHARED, SHARED_CALLS = "shared backbone", "shared backbone, two calls"
TWO, TWO_RELAY = "two models", "two models, relay"
# Of the rates at one length: the ratio's name, the way, and over which.
RATIOS = {
    "slo_rate_ratio": (RELAY, INLINE),
    "slo_rate_ratio_returning_50": (RETURNING, INLINE),
    "slo_rate_ratio_second_tier_50": (DISK, INLINE),
    "slo_rate_ratio_shared_backbone": (SHARED, TWO),
    "slo_rate_ratio_shared_two_calls": (SHARED_CALLS, TWO),
    "slo_rate_ratio_shared_over_relay": (SHARED, TWO_RELAY),
    "slo_rate_ratio_affinity": (FIXED, ANY),
}
Rates = Mapping[tuple[str, str], Rate]


def ratio(value: float | None, base: float | None) -> float | None:
    """None where either was not measured, or the second is 0."""
    return value / base if value is not None and base else None


def figures_of(
    length: int, rounds: Sequence[Rates], rates: Rates, longest: Mapping[str, float],
    clients: Mapping[str, float], spent: Mapping[tuple[str, str], Sequence[Spent]],
    alone: Mapping[int, Mapping[str, float]],
) -> tuple[dict[str, Any], dict[str, Any]]:  # fmt: skip
    """Everything but the single loads, and (lowest, highest) of the ratios that were measured more than once.

    `rounds`: rates at `length`, by way; `rates`: (way, length) -> rate; `longest`: way -> tokens; `clients`: way -> how
    many at once; `spent`: (way, length) -> what a request cost at each turn; `alone`: tokens -> ms of a ranking, inline
    and with a ready prefix.
    A way that held no rate counts with the least that it did not hold: ratios over it, named in `at_least`, are more.
    One that held none where the other did is 0 times as good; a round in which neither held any says nothing.
    """
    figures, spread = _ratios_at(length, rounds)
    figures["longest_history_ratio"] = ratio(longest.get(RELAY), longest.get(INLINE))
    figures["concurrency_ratio"] = ratio(clients.get(RELAY), clients.get(INLINE))
    cost = {
        what: {of: median(getattr(turn, what) for turn in turns) for of, turns in spent.items()}
        for what in Spent._fields
    }
    for name, what, each in (
        ("compute_ratio", "core_ms", MIXTURE), ("compute_ratio_at_length", "core_ms", str(length)),
        ("computed_tokens_ratio", "tokens", MIXTURE),
    ):  # fmt: skip
        figures[name] = ratio(cost[what].get((RELAY, each)), cost[what].get((INLINE, each)))
    ready = {tokens: each["ready"] for tokens, each in alone.items()}
    figures["ready_growth"] = ratio(ready[max(ready)], ready[min(ready)]) if len(ready) > 1 else None
    at_length = {(way, each): median(of[way, each].held for of in rounds) for way, each in rounds[0]}
    by_way = nested({**at_length, **{of: rate.held for of, rate in rates.items()}})
    return figures | {
        "rates": by_way, "longest": dict(longest), "clients": dict(clients),
        **{what: nested(of) for what, of in cost.items()},
        "alone": {str(tokens): dict(ms) for tokens, ms in alone.items()},
    }, spread  # fmt: skip


def _ratios_at(length: int, rounds: Sequence[Rates]) -> tuple[dict[str, Any], dict[str, tuple[float, float]]]:
    """RATIOS by name, each the median of the rounds, and which of them are `at_least`; then their spread."""
    figures: dict[str, Any] = {"at_least": []}
    spread = {}
    for name, (way, base) in RATIOS.items():
        found = [(each.get((way, str(length))), each.get((base, str(length)))) for each in rounds]
        told = [(of.held, over) for of, over in found if of and over and (of.held or over.held)]
        if not all(over.held for _, over in told):
            figures["at_least"].append(name)
        figures[name] = None
        if ratios := [rate / (over.held or over.failed) for rate, over in told]:
            figures[name], *spread[name] = extremes(ratios)
    return figures, spread


def nested(found: Mapping[tuple[str, str], float]) -> dict[str, dict[str, float]]:
    """Way -> length -> value."""
    by_way: dict[str, dict[str, float]] = {}
    for (way, length), value in found.items():
        by_way.setdefault(way, {})[length] = value
    return by_way


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
        report.columns(["clients at once", ""], [[w, f"{n:.0f}"] for w, n in figures["clients"].items()])
    )
    rows = [
        [way, length, f"{ms:.1f}", f"{figures['tokens'][way][length]:.0f}"]
        for way, of in figures["core_ms"].items()
        for length, ms in of.items()
    ]
    parts.append(report.columns(["a request, a tenth leaves", "tokens", "core-ms", "tokens computed"], rows))
    return "\n\n".join(["", *parts, ""])
