"""The tensorrt ensembles with ONNX Runtime where the plans are: what served answers are compared with.

python3 -m deploy.tensorrt.reference ARTIFACT --grpc 127.0.0.1:8001 [--requests 64] [--beam-width 256]

Every ensemble that the artifact's plans serve is compared.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime

from build.tensorrt.graphs import plan_graph
from ensembles.description import Model
from ensembles.local import LocalRuntime, request
from ensembles.tensorrt import Plan
from ensembles.tensorrt_rank import ensembles_of
from genrec import steps
from genrec.artifact import load_config
from genrec.catalogue.load import load_catalogue
from genrec.errors import GenrecError
from genrec.models.config import ModelConfig
from genrec.settings import Settings
from genrec.steps import Answer, Tensors

TOP_K, CANDIDATES = 10, 100
AGREEMENT = 0.9  # of top-10 sets: 16-bit plans order near-equal items differently from float32
SCORE_TOLERANCE = 0.1  # of the best item's log-probability


class PlanOnCpu:
    """A plan's graph through ONNX Runtime in float32, as a step; a request at a time."""

    def __init__(self, artifact: Path, config: ModelConfig, name: str) -> None:
        model = plan_graph(artifact, name, "f32", config)
        self._session = onnxruntime.InferenceSession(model.SerializeToString())
        self._names = [port.name for port in self._session.get_outputs()]

    def run(self, requests: list[Tensors]) -> list[Answer]:
        """See `genrec.steps.Step.run`."""
        return [dict(zip(self._names, self._session.run(None, r), strict=True)) for r in requests]


class ReferenceRuntime(LocalRuntime):
    """The local runtime of a tensorrt ensemble, by its name, on a CPU."""

    def __init__(self, artifact: Path, beam_width: int, name: str = "recommend") -> None:
        self._artifact, self._config = artifact, load_config(artifact, "tensorrt")
        settings = Settings(artifact, artifact / "no-arena", beam_width, "tensorrt")
        super().__init__({each.name: each for each in ensembles_of(artifact, "f32")}[name], settings)

    def _step(self, model: Model, settings: Settings) -> steps.Step:
        """ONNX Runtime in the plans' place."""
        if isinstance(model, Plan):
            return PlanOnCpu(self._artifact, self._config, model.name)
        return super()._step(model, settings)


def questions(artifact: Path, name: str, count: int, retrieve: int) -> list[Tensors]:
    """Random ones to an ensemble; `retrieve`: of `recommend_and_rank`. Candidates to be ranked are random items."""
    items = load_catalogue(artifact, load_config(artifact, "tensorrt")).item_ids
    draw = np.random.default_rng(0)
    asked: list[Tensors] = []
    for _ in range(count):
        one = request(draw.choice(items, int(draw.integers(1, 30))).tolist(), TOP_K)
        if name == "rank":
            del one["exclude_history"]
            one["candidates"] = draw.choice(items, min(CANDIDATES, len(items)), replace=False)[None]
        elif name == "recommend_and_rank":
            one["retrieve"] = np.array([[retrieve]], np.int32)
        asked.append(one)
    return asked


def compare(artifact: Path, url: str, count: int, beam_width: int, name: str) -> dict[str, float | str]:
    """Ask the server and the reference the same `count` questions; agreement of items, gap of best scores."""
    from clients.ranker import Ranker
    from clients.recommender import Recommender

    retrieve = min(CANDIDATES, beam_width)
    asked = questions(artifact, name, count, retrieve)
    wanted = ReferenceRuntime(artifact, beam_width, name).run(asked)
    shared, gaps = [], []
    with Recommender(url, model=name) as recommender, Ranker(url) as ranker:
        for one, want in zip(asked, wanted, strict=True):
            if isinstance(want, GenrecError):
                raise want
            history = one["history"][0]
            if name == "rank":
                got = ranker.rank(history, one["candidates"][0], TOP_K)
            elif name == "recommend_and_rank":
                got = ranker.recommend_and_rank(history, retrieve, TOP_K)
            else:
                got = recommender.recommend(history, TOP_K)
            shared.append(len(set(map(int, got.item_ids)) & set(want["item_ids"][0].tolist())) / TOP_K)
            gaps.append(abs(float(got.scores[0]) - float(want["scores"][0, 0])))
    agreement = float(np.mean(shared))
    return {"ensemble": name, "requests": count, "agreement": agreement, "worst_score_gap": max(gaps)}


def main() -> None:
    """Command line; the exit status says whether the served answers are the reference's."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("artifact", type=Path)
    parser.add_argument("--grpc", default="127.0.0.1:8001")
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--beam-width", type=int, default=256)
    options = parser.parse_args()
    found = [
        compare(options.artifact, options.grpc, options.requests, options.beam_width, each.name)
        for each in ensembles_of(options.artifact, "f32")
    ]
    print("\n".join(map(json.dumps, found)))
    sys.exit(any(f["agreement"] < AGREEMENT or f["worst_score_gap"] > SCORE_TOLERANCE for f in found))


if __name__ == "__main__":
    main()
