"""The tensorrt ensembles with ONNX Runtime where the plans are: what served answers are compared with.

python3 -m deploy.tensorrt.reference ARTIFACT --grpc 127.0.0.1:8001 [--requests 64] [--beam-width 256]

An artifact with a draft head is compared twice: `recommend` and `recommend_draft`.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

from build.tensorrt.served_onnx import served
from ensembles.description import Model
from ensembles.local import LocalRuntime, request
from ensembles.tensorrt import Plan, recommend_draft_tensorrt, recommend_tensorrt
from genrec import steps
from genrec.artifact import load_config
from genrec.catalogue.load import load_catalogue
from genrec.draft.load import load_drafter
from genrec.draft.options import has_draft
from genrec.errors import GenrecError
from genrec.models.config import ModelConfig
from genrec.settings import Settings
from genrec.steps import Answer, Tensors

TOP_K = 10
AGREEMENT = 0.9  # of top-10 sets: 16-bit plans order near-equal items differently from float32
SCORE_TOLERANCE = 0.1  # of the best item's log-probability


class PlanOnCpu:
    """A plan's graph through ONNX Runtime in float32, as a step; a request at a time."""

    def __init__(self, artifact: Path, config: ModelConfig, name: str) -> None:
        model = served(onnx.load(str(artifact / "onnx" / f"{name}.onnx")), name, config)
        self._session = onnxruntime.InferenceSession(model.SerializeToString())
        self._names = [port.name for port in self._session.get_outputs()]

    def run(self, requests: list[Tensors]) -> list[Answer]:
        """See `genrec.steps.Step.run`."""
        return [dict(zip(self._names, self._session.run(None, r), strict=True)) for r in requests]


class ReferenceRuntime(LocalRuntime):
    """The local runtime of a tensorrt ensemble, by `decoder` (`beam`, `draft`), on a CPU."""

    def __init__(self, artifact: Path, beam_width: int, decoder: str = "beam") -> None:
        self._artifact, self._config = artifact, load_config(artifact)
        settings = Settings(artifact, artifact / "no-arena", beam_width, "tensorrt")
        ensemble = recommend_tensorrt(self._config, "f32")
        if decoder == "draft":
            ensemble = recommend_draft_tensorrt(
                self._config, load_drafter(artifact, self._config).placeholders
            )
        super().__init__(ensemble, settings)

    def _step(self, model: Model, settings: Settings) -> steps.Step:
        """ONNX Runtime in the plans' place."""
        if isinstance(model, Plan):
            return PlanOnCpu(self._artifact, self._config, model.name)
        return super()._step(model, settings)


def compare(artifact: Path, url: str, count: int, beam_width: int, decoder: str) -> dict[str, float | str]:
    """Ask the server and the reference the same `count` random histories; agreement of items, gap of best scores."""
    from clients.recommender import Recommender

    items, draw = load_catalogue(artifact, load_config(artifact)).item_ids, np.random.default_rng(0)
    histories = [draw.choice(items, int(draw.integers(1, 30))).tolist() for _ in range(count)]
    wanted = ReferenceRuntime(artifact, beam_width, decoder).run([request(h, TOP_K) for h in histories])
    shared, gaps = [], []
    with Recommender(url, model="recommend_draft" if decoder == "draft" else "recommend") as client:
        for history, want in zip(histories, wanted, strict=True):
            if isinstance(want, GenrecError):
                raise want
            got = client.recommend(history, TOP_K)
            shared.append(len(set(map(int, got.item_ids)) & set(want["item_ids"][0].tolist())) / TOP_K)
            gaps.append(abs(float(got.scores[0]) - float(want["scores"][0, 0])))
    agreement = float(np.mean(shared))
    return {"decoder": decoder, "requests": count, "agreement": agreement, "worst_score_gap": max(gaps)}


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
    decoders = ("beam", "draft") if has_draft(options.artifact) else ("beam",)
    found = [
        compare(options.artifact, options.grpc, options.requests, options.beam_width, d) for d in decoders
    ]
    print("\n".join(map(json.dumps, found)))
    sys.exit(any(f["agreement"] < AGREEMENT or f["worst_score_gap"] > SCORE_TOLERANCE for f in found))


if __name__ == "__main__":
    main()
