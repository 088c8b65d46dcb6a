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
    figure, axes = plot.panels(
        len(results), len(prompts), (4.5 * len(prompts), 3.4 * len(results)), squeeze=False
    )
    for result, row in zip(results, axes, strict=True):
        for prompt, axis in zip(prompts, row, strict=True):
            here = [cell for cell in _cells(result) if cell["prompt"] == prompt]
            for system in dict.fromkeys(cell["system"] for cell in here):
                line = sorted((c["beam_width"], c["best_rate"]) for c in here if c["system"] == system)
                ours = system.startswith(OURS)
                axis.plot(
                    *zip(*line, strict=True),
                    "o-" if ours else "s--",
                    linewidth=2 if ours else 1,
                    label=system,
                )
            widths = sorted({cell["beam_width"] for cell in here})
            axis.set(
                xscale="log", yscale="log", title=f"{result['machine']['name']}, prompt of {prompt} tokens"
            )
            axis.set_xticks(widths, [str(width) for width in widths], minor=False)
            axis.set_xticks([], minor=True)
        row[0].set_ylabel("requests/s")
    for axis in axes[-1]:
        axis.set_xlabel("beam width")
    plot.save(figure, path)


def _cells(result: dict[str, Any]) -> list[dict[str, Any]]:
    """Those of the first model that have a rate."""
    cells = result["cells"]
    return [c for c in cells if c["model"] == cells[0]["model"] and c.get("best_rate") is not None]
