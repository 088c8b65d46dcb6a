"""The requests of `perf.gpu.requests` through a real tritonserver with target `cuda`: what the server adds.

One request at a time is asked by perf_analyzer, at a rate low enough that requests rarely meet; eight at once by
eight clients that never wait, where the time of a batch is eight over the answers per second.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from build.cuda.engines import build_engines as build_cuda
from build.validity import build_validity
from deploy.launcher import running_server
from genrec.catalogue.load import load_catalogue
from genrec.manifest import record
from perf.gpu.requests import Setting
from perf.kit.endpoints import Endpoint
from perf.kit.mock import write_model
from perf.kit.traffic import Histories
from perf.slo import analyzer
from perf.slo.capacity import capacity

TOP_K = 8
LOAD = 0.2  # of the rate that one request after the other would give
REQUESTS = 60
HISTORIES = 64
SECONDS = 10.0
NO_LIMIT_MS = 1e6
DATA = "histories.json"


def measure(
    setting: Setting, alone_ms: Mapping[str, float], folder: Path, device: torch.device
) -> dict[str, dict[str, Any]]:
    """Per (S, B) of `setting`: milliseconds, by whom measured, and what came on top of `alone_ms` of the same key.

    S tokens are S // L whole items; `encode_history` pads to multiples of 32. Raises what the launcher, the
    clients and perf_analyzer raise.
    """
    artifact = folder / "artifact"
    write_model(artifact, setting.config, setting.items)
    model = artifact / "model"
    record(artifact, "train", "random", [*model.iterdir(), artifact / "catalogue.parquet"], {})
    build_validity(artifact)
    build_cuda(artifact, "bf16" if device.type == "cuda" else "f32", device.type)
    items = load_catalogue(artifact, setting.config).item_ids
    found: dict[str, dict[str, Any]] = {}
    with running_server(artifact, target="cuda", beam_width=setting.width, streams=1) as running:
        server = Endpoint(running.grpc_url, running.grpc_headers)
        for span, batch in setting.points:
            name = f"s{span}_b{batch}"
            histories = list(_histories(items, span // setting.config.levels))
            capacity(server, histories, batch, 1.0, TOP_K)  # captures the graphs of this shape
            one = _one_at_a_time if batch == 1 else _at_once
            ms, by = one(server, histories, batch, alone_ms[name], folder)
            found[name] = {"ms": ms, "by": by, "added_ms": ms - alone_ms[name]}
    return found


def _histories(items: NDArray[np.int64], count: int) -> Histories:
    draw = np.random.default_rng(count)
    return [draw.choice(items, count) for _ in range(HISTORIES)]


def _one_at_a_time(
    server: Endpoint, histories: Histories, batch: int, alone_ms: float, folder: Path
) -> tuple[float, str]:
    analyzer.write_input_data(folder / DATA, histories, TOP_K)
    rate = max(LOAD * 1e3 / alone_ms, 1.0)  # perf_analyzer takes no fixed count of requests below 1/s
    point = analyzer.measure(server, rate, NO_LIMIT_MS, analyzer.Window(count=REQUESTS), folder, DATA)
    if point.p50_ms is None:
        raise RuntimeError("; ".join(point.problems))
    return point.p50_ms, f"perf_analyzer, P50 at {rate:.1f}/s"


def _at_once(
    server: Endpoint, histories: Histories, batch: int, alone_ms: float, folder: Path
) -> tuple[float, str]:
    rate, _ = capacity(server, histories, batch, SECONDS, TOP_K)
    return 1e3 * batch / rate, f"{batch} clients, {rate:.1f} answers/s"
