"""What filtering, a compiled engine, operations of ours and streams are worth (xGR, figure 18): one process.

    genrec bench engine_ablation artifacts/ml-1m [--beam-width 128] [--requests 40] [--rounds 3]

Each way has one thing more than the one before: shared and unshared KV in torch, run eagerly, beams of any codes; beams
of items alone; engines of OpenVINO's own nodes, built for this run; the engines that serve, with operations of ours
(build/openvino/operations.py) if they could be compiled; two streams of them, each on half of the cores. Torch computes
in f32, engines in bf16 where the CPU does: that step changes both. All answer the same requests and score every beam.
Ways take turns, a round of requests each. Rate and latency are of one request at a time, or one per stream; `valid` is
the share of the last beams that are items.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from build.openvino.graphs import build_openvino
from genrec.artifact import load_config
from genrec.catalogue.indices import load_validity
from genrec.engine.host import HostExecutor
from genrec.engine.instructions import engine_of
from genrec.engine.interface import Array, DecodePass
from genrec.engine.load import load_layout, load_passes
from genrec.nn.checkpoint import load_generator
from genrec.nn.model import Generator
from genrec.nn.xattention import DecodeGraph, PrefillGraph
from genrec.search.constraint import Constraint
from genrec.search.expand import Beams
from genrec.search.scratch import largest
from genrec.search.undecided import Int64
from genrec.settings import Settings
from perf.kit import report, traffic, turns

BASE, FILTERED, COMPILED, OPERATION, STREAMS = (
    "base", "+ filtering", "+ compiled engine", "+ operations of ours", "+ two streams",
)  # fmt: skip


class EagerPasses:
    """The graphs that are exported, run by torch as they stand. See `genrec.engine.interface.Passes`."""

    def __init__(self, model: Generator) -> None:
        levels = range(2, model.config.levels + 1)
        self._prefill, self._decode = PrefillGraph(model), {n: DecodeGraph(model, n) for n in levels}

    @torch.no_grad()
    def prefill(
        self, tokens: Array, lengths: Array, logits: Array, kv: Sequence[Array], lends: bool = False
    ) -> Sequence[Array]:  # fmt: skip
        """See `Passes.prefill`."""
        _fill([logits, *kv], self._prefill(torch.from_numpy(tokens), torch.from_numpy(lengths)))
        return kv

    @torch.no_grad()
    def decode(self, given: DecodePass) -> Array:
        """See `Passes.decode`."""
        kept, written = given.unshared, given.level - 2
        earlier = [
            kept[n + kind][u] for n in range(0, len(kept), 2) for u in range(written) for kind in (0, 1)
        ]
        arrays = ([torch.from_numpy(each) for each in group] for group in (given.shared, earlier))
        where = torch.from_numpy(given.codes), torch.from_numpy(given.lengths)
        found = self._decode[given.level](*where, *arrays)
        _fill([given.logits, *(each[written] for each in kept if len(each) > written)], found)
        return given.logits

    def draft_states(self, tokens: Array, lengths: Array) -> NDArray[np.float32]:
        """Not part of the ablation."""
        raise NotImplementedError


class Unfiltered(HostExecutor):
    """Beam search over all codes, as an LLM's: what is no item is found out afterwards."""

    def _expand(
        self,
        number: int,
        constraints: list[Constraint],
        beams: list[Beams] | list[None],
        scored: list[Int64] | list[None],
        logits: Array,
    ) -> list[Beams]:
        return [
            _extend(row[: 1 if before is None else len(before)], before, self._width)
            for row, before in zip(logits, beams, strict=True)
        ]


def _extend(logits: Array, beams: Beams | None, width: int) -> Beams:
    """The `width` best of all W x T extensions."""
    paths = np.zeros(1, np.int64) if beams is None else beams.paths
    before = np.zeros(1, np.float32) if beams is None else beams.scores
    top = logits.max(1, keepdims=True)
    total = np.log(np.exp(logits - top).sum(1, keepdims=True)) + top - before[:, None]
    scores = (logits - total + np.float32(0.0)).reshape(-1)
    kept = largest(scores, width)
    parents, codes = np.divmod(kept, logits.shape[1])
    extended, nowhere = paths[parents] * logits.shape[1] + codes, np.zeros(len(kept), np.int32)
    return Beams(extended, nowhere, scores[kept], parents.astype(np.int32))


def _fill(arrays: list[Array], tensors: tuple[torch.Tensor, ...]) -> None:
    for array, tensor in zip(arrays, tensors, strict=True):
        array[:] = tensor.numpy()


def ways(artifact: Path, width: int, scratch: Path) -> dict[str, list[HostExecutor]]:
    """Name -> a generator per stream. Engines that do not serve are built in the folder `scratch`."""
    config = load_config(artifact)
    eager = EagerPasses(load_generator(artifact / "model"))
    served, plain = engine_of(artifact, "openvino"), scratch / "openvino"
    kv_type = load_layout(Settings(artifact, Path("none"), width), config).kv_type
    build_openvino(artifact / "onnx", plain, kv_type, config.max_prompt, operation=False)

    def compiled(folder: Path, streams: int = 1) -> list[HostExecutor]:
        passes = load_passes("openvino", folder, kv_type, streams=streams)
        return [HostExecutor(each, config, width, kv_type) for each in passes]

    return {
        BASE: [Unfiltered(eager, config, width, "f32")],
        FILTERED: [HostExecutor(eager, config, width, "f32")],
        COMPILED: compiled(plain),
        OPERATION: compiled(served),
        STREAMS: compiled(served, streams=2),
    }


def measure(
    generators: list[HostExecutor], asked: list[tuple[Array, Array]], free: Constraint
) -> tuple[float, list[float], list[Beams]]:
    """Requests per second, seconds of each, and the beams of each."""

    def work(number: int) -> list[tuple[float, Beams]]:
        done = []
        for tokens, lengths in asked[number :: len(generators)]:
            begun = perf_counter()
            (beams,) = generators[number].answers(tokens, lengths, [free], every_beam=True)
            done.append((perf_counter() - begun, beams))
        return done

    begun = perf_counter()
    with ThreadPoolExecutor(len(generators)) as pool:
        done = [one for part in pool.map(work, range(len(generators))) for one in part]
    return len(asked) / (perf_counter() - begun), [s for s, _ in done], [beams for _, beams in done]


def compare(
    artifact: Path, width: int, requests: int, rounds: int, seed: int = 0
) -> dict[str, dict[str, Any]]:
    """Figures by way. Raises ArtifactError."""
    config = load_config(artifact)
    index = load_validity(artifact, config)
    free = Constraint(index, index.blocked(np.array([-1], np.int32)))
    asked, items = traffic.prompts(artifact, requests, seed), index.paths(index.levels)
    with tempfile.TemporaryDirectory() as scratch:
        made = ways(artifact, width, Path(scratch))
        arms = {name: partial(measure, generators, asked, free) for name, generators in made.items()}
        seen = turns.in_turns(arms, rounds, warm_ups=1, label="ways")
    found = {}
    for name, turns_of in seen.items():
        rates = [rate for rate, _, _ in turns_of]
        ms = [1000 * each for _, seconds, _ in turns_of for each in seconds]
        valid = [np.isin(each.paths, items).mean() for _, _, beams in turns_of for each in beams]
        found[name] = {
            "requests_s": median(rates), "rates": rates, "p50_ms": median(ms),
            "p99_ms": float(np.percentile(ms, 99)), "valid": float(np.mean(valid)),
        }  # fmt: skip
    return found


def main(argv: Sequence[str] | None = None) -> None:
    """Print a table, and one JSON object as the last line."""
    parser = report.arguments("engine_ablation", __doc__)
    parser.add_argument("artifact", type=Path)
    report.add_options(parser, beam_width=128, requests=40, rounds=3)
    a = parser.parse_args(argv)
    run = report.begin(a)
    found = compare(a.artifact, a.beam_width, a.requests, a.rounds)
    rows = [
        (name, f"{f['requests_s']:.1f}", f"{f['p50_ms']:.2f}", f"{f['p99_ms']:.2f}", f"{f['valid']:.1%}")
        for name, f in found.items()
    ]
    print(report.columns(("", "requests/s", "p50 ms", "p99 ms", "valid"), rows))
    spread = {f"requests_s, {name}": turns.extremes(f["rates"])[1:] for name, f in found.items()}
    run.publish({"ways": found}, repeats=a.rounds, spread=spread)


if __name__ == "__main__":
    main()
