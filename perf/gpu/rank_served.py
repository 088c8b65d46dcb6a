"""The rankings of `perf.gpu.rank` through a real tritonserver with target `cuda`: waits, answers a second, cascades."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import torch

from build.cuda.engines import build_engines as build_cuda
from build.validity import build_validity
from deploy.launcher import running_server
from export.ranker import save_head
from genrec.catalogue.load import load_catalogue
from genrec.manifest import record
from genrec.nn.ranker_checkpoint import load_ranker
from genrec.rank.options import RankerConfig
from perf.gpu.cascade import cascade
from perf.gpu.rank import Setting
from perf.rank.in_flight import Population, in_flight
from perf.rank.mock_ranker import write_ranker

ITEMS, USERS, POPULAR = 2000, 12, 1500
POOL_MB = 4096  # of users, and of items: all fit
WIDTH = 128  # beams: a cascade ranks 100 candidates
IN_FLIGHT = (1, 4, 16)
START_S = 300.0


def measure(
    setting: Setting, folder: Path, device: torch.device, seconds: float
) -> dict[str, dict[str, Any]]:
    """`rank_served`: rankings in flight -> answers a second and times in ms, users and items being in the pool and on
    the device. `cascade`: see there.

    Users are those of the setting's first point.
    """
    artifact = folder / "artifact"
    length, _ = setting.points[0]
    options = RankerConfig(True, "split", setting.item_tokens)
    write_ranker(artifact, setting.config, options, ITEMS)
    model, onnx = artifact / "model", artifact / "onnx"
    record(artifact, "train", "random", [*model.iterdir(), artifact / "catalogue.parquet"], {})
    onnx.mkdir()
    save_head(load_ranker(model), onnx)
    build_validity(artifact)
    build_cuda(artifact, "bf16" if device.type == "cuda" else "f32", device.type)
    history = length // setting.config.levels
    of = Population(USERS, history, setting.candidates, min(POPULAR, ITEMS))
    sizes = {"pool_user_mb": POOL_MB, "pool_item_mb": POOL_MB} if device.type == "cuda" else {}
    with running_server(
        artifact, target="cuda", ensembles=("rank", "recommend", "recommend_and_rank"), beam_width=WIDTH,
        pool_fill="none", start_timeout_s=START_S, **sizes,
    ) as server:  # fmt: skip
        found = {}
        for many in IN_FLIGHT:
            load = asyncio.run(in_flight(server.grpc_url, artifact, of, many, seconds))
            found[f"in_flight_{many}"] = {**load._asdict(), "tokens": history * setting.config.levels}
        items = load_catalogue(artifact, setting.config).item_ids
        return {
            "rank_served": found,
            "cascade": cascade(server.grpc_url, items, history, setting.candidates),
        }
