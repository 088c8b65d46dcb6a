"""Pictures: one look for all, and the same bytes whenever the same figures are drawn."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

# No random names and no date in the file, text stays text; digits beyond these differ between CPUs.
STEADY = {"svg.hashsalt": "genrec", "svg.fonttype": "none"}


def panels(rows: int, across: int, size: tuple[float, float], **options: Any) -> tuple[Any, Any]:
    """A figure of `size` inches and its axes. No pyplot: no global state, no display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, across, **options)


def save(figure: Any, path: Path) -> None:
    """Write it as its suffix says, with a grid on every axis, and a legend if the figure has none for all."""
    from matplotlib import rc_context

    for axis in figure.axes:
        axis.grid(alpha=0.3, which="both" if axis.get_yscale() == "log" else "major")
        if axis.get_legend_handles_labels()[1] and not figure.legends:
            axis.legend(fontsize="small")
    about = {"Date": None, "Creator": None} if path.suffix == ".svg" else None
    with rc_context(STEADY):
        figure.savefig(path, dpi=120, metadata=about)
    if path.suffix == ".svg":
        path.write_text(re.sub(r"\d+\.\d{3,}", lambda number: f"{float(number[0]):.2f}", path.read_text()))
