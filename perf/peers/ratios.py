"""Cells as a table for people and as the figures of the last line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any

import numpy as np

from perf.peers.cells import CONCURRENCY, Cell
from perf.peers.ours import NAME, OURS

MIB = 1 << 20


def table(cells: Sequence[Cell]) -> str:
    """One block per model, prompt and beam width; a line per system, or the reason why there is none."""
    lines: list[str] = []
    for (model, prompt, width), block in grouped(cells):
        lines.append(f"\n{model}, prompt of {prompt} tokens, BW {width}")
        heads = "".join(f"{f'req/s, {c} at a time':>28}" for c in CONCURRENCY)
        lines.append(
            f"  {'':20}{'ms':>9}{'(quartiles)':>19}{heads}{'MiB':>8}{'valid':>8}{'distinct':>9}{'requests':>9}"
        )
        lines += [f"  {cell.system:20}{_figures(cell)}" for cell in block]
    return "\n".join(lines)


def _figures(cell: Cell) -> str:
    if cell.refusal:
        return cell.refusal
    low, middle, high = 1000 * np.quantile(cell.latencies, (0.25, 0.5, 0.75))
    rates = "".join(f"{_rate(cell, concurrency):>28}" for concurrency in CONCURRENCY)
    memory = f"{cell.memory / MIB:8.0f}" if cell.memory else f"{'-':>8}"
    quartiles = f"({low:.1f} - {high:.1f})"
    return (
        f"{middle:9.1f}{quartiles:>19}{rates}{memory}{cell.valid_rate():8.1%}{cell.distinct():9.1f}"
        f"{len(cell.answers):9}"
    )


def _rate(cell: Cell, concurrency: int) -> str:
    rates = cell.rates(concurrency)
    if not rates:
        return cell.missing.get(concurrency, "-")
    return f"{median(rates):.2f} ({min(rates):.2f} - {max(rates):.2f})"


def grouped(cells: Iterable[Cell]) -> list[tuple[tuple[str, int, int], list[Cell]]]:
    """Cells of one model, prompt and beam width together, in their order."""
    groups: dict[tuple[str, int, int], list[Cell]] = {}
    for cell in cells:
        groups.setdefault((cell.model, cell.prompt, cell.width), []).append(cell)
    return list(groups.items())


def ratios(cells: Sequence[Cell], width: int, name: str = NAME) -> dict[str, dict[str, Any]]:
    """Ours (`name`) over the best peer at one beam width, per model and prompt: requests per second, and peak memory.

    A system's rate is the better of its concurrencies; over a peer, of those that both have. What no peer managed has
    no ratio; what a peer managed and we did not is 0.
    """
    found: dict[str, dict[str, Any]] = {}
    for (model, prompt, of_width), block in grouped(cells):
        ours = [cell for cell in block if cell.system == name]
        peers = [cell for cell in block if cell.system not in OURS and not cell.refusal]
        if of_width != width or not ours or not peers:
            continue
        over = {cell.system: times for cell in peers if (times := _over(ours[0], cell)) is not None}
        if not over:
            continue
        fastest = min(over, key=lambda name: over[name])
        rates = {cell.system: cell.best_rate() or 0.0 for cell in peers}
        memories = {cell.system: cell.memory for cell in peers if cell.memory}
        found[f"{model}, {prompt} tokens"] = {
            "rate": over[fastest],
            "fastest": fastest,
            "fastest_rate": rates[fastest],
            "memory": ours[0].memory / min(memories.values()) if memories and ours[0].memory else None,
            "smallest": min(memories, key=lambda name: memories[name]) if memories else None,
        }
    return found


def _over(ours: Cell, peer: Cell) -> float | None:
    """Requests per second over a peer's, each at the better of the concurrencies that both have."""
    if ours.refusal:
        return 0.0
    both = [each for each in CONCURRENCY if ours.rates(each) and peer.rates(each)]
    mine, theirs = ours.best_rate(both), peer.best_rate(both)
    return mine / theirs if mine and theirs else None


def lowest(found: dict[str, dict[str, Any]]) -> float | None:
    """The ratio of requests per second that is least in our favour."""
    return min((one["rate"] for one in found.values()), default=None)


def highest_memory(found: dict[str, dict[str, Any]]) -> float | None:
    """The ratio of peak memory that is least in our favour."""
    return max((one["memory"] for one in found.values() if one["memory"]), default=None)


def as_json(cell: Cell) -> dict[str, Any]:
    """A cell's figures: ms, requests per second (median, least, most), bytes; or its refusal."""
    about: dict[str, Any] = {
        "system": cell.system,
        "model": cell.model,
        "prompt": cell.prompt,
        "beam_width": cell.width,
    }
    if cell.refusal:
        return about | {"refusal": cell.refusal}
    rates = {
        str(c): [median(r), min(r), max(r)] if (r := cell.rates(c)) else cell.missing.get(c)
        for c in CONCURRENCY
    }
    return about | {
        "latency_ms": [1000 * float(q) for q in np.quantile(cell.latencies, (0.5, 0.25, 0.75))],
        "requests_per_s": rates,
        "best_rate": cell.best_rate(),
        "peak_bytes": cell.memory or None,
        "peak_mib": cell.memory / MIB or None,
        "valid_rate": cell.valid_rate(),
        "distinct": cell.distinct(),
        "requests": len(cell.answers),
    }
