"""The requests of `perf.gpu.requests` through a real tritonserver with target `cuda`: what the server adds.

One request at a time is asked by perf_analyzer, at a rate low enough that requests rarely meet; eight at once by
eight clients that never wait, where the time of a batch is eight over the answers per second.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from build.cuda.engines import build_engines as build_cuda
from build.validity import build_validity
from deploy.launcher import running_server
from deploy.server_files import find_server
from genrec.catalogue.load import load_catalogue
from genrec.errors import ArtifactError
from genrec.manifest import record
from genrec.settings import SPAN
from perf.gpu.requests import Setting, prompt_tokens
from perf.gpu.timing import Missing
from perf.kit import worth
from perf.kit.endpoints import Endpoint
from perf.kit.mock import write_model
from perf.kit.traffic import Histories
from perf.slo import analyzer
from perf.slo.capacity import capacity

TOP_K = 8
LOAD = 0.2  # of the rate that one request after the other would give
HISTORIES = 64
NO_LIMIT_MS = 1e6
DATA = "histories.json"
START_S = 300.0  # the graphs of all batches are captured before the server is ready


def measure(
    setting: Setting, alone_ms: Mapping[str, float], folder: Path, device: torch.device
) -> dict[str, dict[str, Any]]:
    """Per (S, B) of `setting`: milliseconds, by whom measured, and what came on top of `alone_ms` of the same key.

    The prompts are as long as those of `perf.gpu.requests`, and `batch_tokens` is such that B of them are one batch.
    After each a few of the histories are asked again, for what the answers are worth (perf/kit/worth.py). Raises what
    the launcher, the clients and perf_analyzer raise.
    """
    artifact = folder / "artifact"
    write_model(artifact, setting.config, setting.items)
    model = artifact / "model"
    record(artifact, "train", "random", [*model.iterdir(), artifact / "catalogue.parquet"], {})
    build_validity(artifact)
    build_cuda(artifact, "bf16" if device.type == "cuda" else "f32", device.type)
    items = load_catalogue(artifact, setting.config).item_ids
    found: dict[str, dict[str, Any]] = {}
    with running_server(
        artifact, target="cuda", beam_width=setting.width, batch_tokens=batch_tokens(setting),
        start_timeout_s=START_S,
    ) as running:  # fmt: skip
        server = Endpoint(running.grpc_url, running.grpc_headers)
        for span, batch in setting.points:
            name = f"s{span}_b{batch}"
            if name not in alone_ms:
                continue
            histories = list(_histories(items, span // setting.config.levels))
            if batch == 1:
                ms, by = _one_at_a_time(server, histories, setting, alone_ms[name], folder)
            else:
                ms, by = _at_once(server, histories, setting, batch)
            tokens = prompt_tokens(setting, span)
            found[name] = {"ms": ms, "by": by, "added_ms": ms - alone_ms[name], "tokens": tokens}
            checked = worth.worth_of(artifact, worth.ask(server, histories, TOP_K), TOP_K)
            print(f"{name}: {worth.line(checked)}", flush=True)
            found[name] |= checked._asdict()
    return found


def batch_tokens(setting: Setting) -> int:
    """What the largest batch of `setting` takes, as `generate` counts: padded prompts, a token per beam and level."""
    beams = setting.width * (setting.config.levels - 1)
    return max(
        batch * (-(-prompt_tokens(setting, span) // SPAN) * SPAN + beams) for span, batch in setting.points
    )


def find_tools(*tools: Callable[[], object]) -> None:
    """Raises Missing, naming what is not there: of the server and perf_analyzer, if nothing else is asked for."""
    try:
        for find in tools or (find_server, analyzer.find_binary):
            find()
    except ArtifactError as error:
        raise Missing(str(error)) from error


def _histories(items: NDArray[np.int64], count: int) -> Histories:
    draw = np.random.default_rng(count)
    return [draw.choice(items, count) for _ in range(HISTORIES)]


def _one_at_a_time(
    server: Endpoint, histories: Histories, setting: Setting, alone_ms: float, folder: Path
) -> tuple[float, str]:
    analyzer.write_input_data(folder / DATA, histories, TOP_K)
    # perf_analyzer takes a fixed count of requests only at 1/s or above, and at no more a second than the count.
    rate = min(max(LOAD * 1e3 / alone_ms, 1.0), float(setting.served))
    point = analyzer.measure(server, rate, NO_LIMIT_MS, analyzer.Window(count=setting.served), folder, DATA)
    if point.p50_ms is None:
        raise RuntimeError("; ".join(point.problems))
    return point.p50_ms, f"perf_analyzer, P50 at {rate:.1f}/s"


def _at_once(server: Endpoint, histories: Histories, setting: Setting, batch: int) -> tuple[float, str]:
    rate, _ = capacity(server, histories, batch, setting.seconds, TOP_K)
    return 1e3 * batch / rate, f"{batch} clients, {rate:.1f} answers/s"
