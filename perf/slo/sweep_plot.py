"""The picture of a sweep."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from perf.kit import plot
from perf.slo.analyzer import Point


def plot_sweep(points: Sequence[Point], slo_ms: float, highest: float, title: str, path: Path) -> None:
    """P99 and throughput against the request rate, the SLO as a line; points that did not hold are hollow."""
    measured = sorted((p for p in points if p.p99_ms is not None), key=lambda p: p.rate)
    figure, (latency, throughput) = plot.panels(2, 1, (8, 6), sharex=True)
    for held, face, label in ((True, "C0", "held"), (False, "none", "not held")):
        some = [p for p in measured if p.held == held]
        marks = {"marker": "o", "linestyle": "", "markeredgecolor": "C0", "markerfacecolor": face}
        latency.plot([p.rate for p in some], [p.p99_ms for p in some], label=f"P99, {label}", **marks)
        throughput.plot([p.rate for p in some], [p.throughput for p in some], **marks)
    latency.axhline(slo_ms, color="C3", label=f"SLO {slo_ms:g} ms")
    gone = sorted(p.rate for p in points if p.p99_ms is None)
    if gone:
        latency.plot(gone, [slo_ms] * len(gone), "x", color="C3", label="no result")
    throughput.axline((0, 0), slope=1, color="0.7", linewidth=0.8, label="all answered")
    for axis in (latency, throughput) if highest else ():
        axis.axvline(highest, color="C2", linestyle=":", label=f"highest rate held: {highest:g}/s")
    latency.set(title=title, ylabel="P99 (ms)", ylim=(0, None))
    rates = [p.rate for p in points]
    throughput.set(
        xlabel="request rate (1/s, Poisson)", ylabel="answers (1/s)", ylim=(0, 1.1 * max(rates, default=1))
    )
    throughput.set_xlim(0, 1.1 * max(rates, default=1))
    plot.save(figure, path)
