"""The picture of `genrec bench relay`: requests within the budgets against the length of histories, a line per way."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from perf.kit import plot


def draw(results: Sequence[dict[str, Any]], path: Path) -> None:
    """A panel per machine; a way that holds no rate at a length is on the axis."""
    figure, axes = plot.panels(1, len(results), (7 * len(results), 4), squeeze=False)
    for axis, result in zip(axes[0], results, strict=True):
        for way, of in result["rates"].items():
            points = sorted((int(length), rate) for length, rate in of.items() if length.isdecimal())
            axis.plot(*zip(*points, strict=True), marker="o", label=way)
        axis.set(
            title=f"{result['machine']['name']}, model {result['model']}",
            xlabel="history (tokens)",
            ylabel="requests/s within the budgets",
            ylim=(0, None),
        )
    plot.save(figure, path)
