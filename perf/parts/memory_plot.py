"""The picture of perf.parts.peak_memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from perf.kit import plot


def plot_memory(cells: Sequence[dict[str, Any]], path: Path) -> None:
    """Peak memory against beam width (Figure 15) and prompt length (Figure 16); hollow marks are arithmetic."""
    figure, axes = plot.panels(1, 2, (11, 5), sharey=True)
    for axis, (x, fixed, xlabel, name) in zip(
        axes,
        (("beam_width", "prompt", "beam width", "S"), ("prompt", "beam_width", "prompt tokens", "BW")),
        strict=True,
    ):
        for number, value in enumerate(sorted({cell[fixed] for cell in cells})):
            line = sorted((cell for cell in cells if cell[fixed] == value), key=lambda cell: cell[x])
            at, color = [cell[x] for cell in line], f"C{number}"
            axis.plot(at, [c["ours_mb"] for c in line], "o-", color=color, label=f"ours, {name} {value}")
            other = [c["per_beam_mb"] or c["per_beam_kv_mb"] for c in line]
            axis.plot(at, other, "--", color=color, label=f"per beam, {name} {value}")
            for c, height in zip(line, other, strict=True):
                axis.plot(
                    c[x], height, "s", color=color, markerfacecolor=color if c["per_beam_mb"] else "none"
                )
        axis.set(xlabel=xlabel, yscale="log")
    figure.axes[0].set_ylabel("peak of one request over the loaded engine (MB)")
    figure.suptitle("One copy of the prompt's KV, and one per beam (hollow: not run, KV alone by arithmetic)")
    plot.save(figure, path)
