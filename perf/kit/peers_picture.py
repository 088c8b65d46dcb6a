"""The picture of `genrec bench peers`: requests per second of ours and of the peers, against the beam width."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from perf.kit import plot

OURS = "genrec-triton"


def draw(results: Sequence[dict[str, Any]], path: Path) -> None:
    """A row per machine, a column per prompt length; the first model only. What a system cannot do is left out."""
    prompts = sorted({cell["prompt"] for result in results for cell in _cells(result)})
    size = 4.5 * len(prompts), 3.2 * len(results) + 0.8
    figure, axes = plot.panels(len(results), len(prompts), size, squeeze=False, sharey="row")
    systems = list(dict.fromkeys(cell["system"] for result in results for cell in _cells(result)))
    for result, row in zip(results, axes, strict=True):
        for prompt, axis in zip(prompts, row, strict=True):
            _panel(axis, [cell for cell in _cells(result) if cell["prompt"] == prompt], systems)
            of = result["cells"][0]["model"]
            axis.set_title(f"{result['machine']['name']}, {of}, prompt of {prompt} tokens", fontsize="medium")
        row[0].set_ylabel("requests/s")
    for axis in axes[-1]:
        axis.set_xlabel("beam width")
    figure.legend(
        *axes[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize="small"
    )
    plot.save(figure, path)


def _panel(axis: Any, cells: Sequence[dict[str, Any]], systems: Sequence[str]) -> None:
    """A line per system, ours thicker; every system has its colour in all panels."""
    for number, system in enumerate(systems):
        line = sorted((c["beam_width"], c["best_rate"]) for c in cells if c["system"] == system)
        ours = system.startswith(OURS)
        axis.plot(
            [width for width, _ in line], [rate for _, rate in line], "o-" if ours else "s--",
            linewidth=2 if ours else 1, color=f"C{number}", label=system,
        )  # fmt: skip
    widths = sorted({cell["beam_width"] for cell in cells})
    axis.set(xscale="log", yscale="log")
    axis.minorticks_off()
    axis.set_xticks(widths, [str(width) for width in widths])


def _cells(result: dict[str, Any]) -> list[dict[str, Any]]:
    """Those of the first model that have a rate."""
    cells = result["cells"]
    return [c for c in cells if c["model"] == cells[0]["model"] and c.get("best_rate") is not None]
