"""The picture of a soak."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from perf.kit import plot
from perf.slo.watch import Sample


def plot_soak(
    samples: Sequence[Sample], windows: Sequence[dict[str, Any]], warm_up: float, path: Path
) -> None:
    """Memory per process, /dev/shm and the arena, latency: against time."""
    figure, (memory, shared, latency) = plot.panels(3, 1, (8, 9), sharex=True)
    at = [sample.at for sample in samples]
    for name in samples[0].memory:
        grown = np.array([sample.memory[name] for sample in samples]) - samples[0].memory[name]
        memory.plot(at, grown / 1e6, label=f"{name}, from {samples[0].memory[name] / 1e6:.0f} MB")
    memory.axvline(warm_up * at[-1], color="0.7", linestyle=":", label="warm-up ends")
    memory.set(ylabel="memory, growth since the start (MB)", title="Soak")
    shared.plot(at, [sample.shm / 1e6 for sample in samples], label="/dev/shm (MB)")
    shared.plot(at, [sample.busy for sample in samples], linewidth=0.6, label="arena rows in use")
    shared.set(ylim=(0, None))
    for key in ("p50_ms", "p99_ms"):
        latency.step([w["from_s"] for w in windows], [w[key] for w in windows], where="post", label=key)
    latency.set(xlabel="seconds", ylabel="latency of good requests (ms)", ylim=(0, None))
    plot.save(figure, path)
