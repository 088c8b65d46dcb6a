"""Where the time of a pass goes: OpenVINO's own count of every kind of node, beside the GEMM rate.

    genrec bench kernels [artifacts/mine] [--tokens 1023] [--beam-width 512] [--repeats 5]

One request after the other in this process, all cores, the first not counted; random codes. A decode pass has the
beams that are not items yet, padding included. FullyConnected and XLinear are the products with weights, XAttention
is the attention, XRotate prepares queries and keys for it; of engines built without a compiler attention is a Subgraph
in a prefill, in a decode MatMul and what lies around it. Counting itself takes a few per cent, so only the shares are
from here. By default the 31 M generator of perf.kit.mock, made when it is not there, for prompts of up to 3,000 tokens.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from genrec.artifact import load_config
from genrec.catalogue.indices import load_validity
from genrec.engine.host import HostExecutor
from genrec.engine.instructions import engine_of
from genrec.engine.interface import Array, DecodePass
from genrec.engine.load import load_layout
from genrec.engine.openvino import OpenVinoPasses
from genrec.engine.openvino_graphs import OpenVinoGraphs
from genrec.progress import counting
from genrec.search.constraint import Constraint
from genrec.settings import Settings
from perf.kit import report
from perf.kit.machine import openvino_gemm
from perf.kit.mock import SHAPE, mock_artifact
from perf.kit.work import Work, work

LEAST_SHARE = 0.01  # of a pass, to be named
PRODUCTS = ("FullyConnected", "XLinear")  # with weights


class CountingPasses(OpenVinoPasses):
    """Passes that know what their nodes took: `ms` by phase (prefill, decode) and kind of node."""

    def __init__(self, folder: Path, kv_type: str) -> None:
        graphs = OpenVinoGraphs(folder, kv_type, 0, cache=False)
        graphs.hints["PERF_COUNT"] = True
        super().__init__(graphs)
        self.ms: dict[str, Counter[str]] = defaultdict(Counter)
        self.beams = Counter[int]()  # that the decode passes of a level scored
        self._calls, self._before = Counter[str](), defaultdict[str, Counter[int]](Counter)

    def _decode(self, given: DecodePass) -> Array:
        self.beams[given.level] += given.codes.size
        return super()._decode(given)

    def _infer(self, name: str, inputs: Sequence[Array], outputs: Sequence[Array | None]) -> list[Array]:
        """OpenVINO tells the mean over all calls of a graph, whichever pass they were of: a call is the difference.

        The mean is in whole microseconds, so all calls together are known to as many microseconds as there were calls,
        and may seem to have taken less than before: then the last took nothing yet.
        """
        found = super()._infer(name, inputs, outputs)
        spent, file = self.ms[name.partition("_")[0]], self._graphs.file_of(name)
        self._calls[file] += 1
        before = self._before[file]
        done = next(one for (graph, _), one in self._requests.items() if graph == file)
        for place, node in enumerate(done.profiling_info):
            whole = max(self._calls[file] * node.real_time.total_seconds() * 1000, before[place])
            spent[_kind(node)] += whole - before[place]
            before[place] = whole
        return found


def _kind(node: Any) -> str:
    """The type of a node; of an operation of ours, which OpenVINO calls a Reference, its name."""
    name: str = node.node_name.partition("_")[0] if node.node_type == "Reference" else node.node_type
    return name


def measure(
    artifact: Path, tokens: int, width: int, repeats: int
) -> tuple[dict[str, dict[str, float]], list[float]]:
    """Median milliseconds of one request by phase and kind of node; beams of each decode pass, on average."""
    config = load_config(artifact)
    kv_type = load_layout(Settings(artifact, artifact, width), config).kv_type
    index = load_validity(artifact, config)
    free = Constraint(index, index.blocked(np.array([-1], np.int32)))
    passes = CountingPasses(engine_of(artifact, "openvino"), kv_type)
    generator = HostExecutor(passes, config, width, kv_type)
    prompts = np.random.default_rng(0).integers(0, config.vocab_size, (repeats + 1, 1, tokens))
    runs, scored = [], []
    for prompt in counting("kernels", len(prompts), "request", iterable=prompts):
        passes.ms.clear()
        passes.beams.clear()
        generator.answers(prompt, np.array([tokens]), [free])
        runs.append({phase: dict(spent) for phase, spent in passes.ms.items()})
        scored.append([passes.beams[level] for level in range(2, config.levels + 1)])
    medians = {
        phase: {kind: median(run[phase].get(kind, 0.0) for run in runs[1:]) for kind in kinds}
        for phase, kinds in runs[-1].items()
    }
    return medians, np.mean(scored[1:], axis=0).tolist()


def shares(spent: dict[str, dict[str, float]], cost: Work, gflops: float) -> dict[str, dict[str, float]]:
    """By phase: ms of all nodes, the share of each kind, and of the GEMM rate what all, the products with weights and
    those of attention reach.
    """  # fmt: skip
    whole = {"prefill": cost.prefill_operations, "decode": cost.decode_operations}
    attention = {"prefill": cost.prefill_attention, "decode": cost.decode_attention}
    found = {}
    for phase, kinds in spent.items():
        total, weights = sum(kinds.values()), sum(kinds.get(kind, 0.0) for kind in PRODUCTS)
        found[phase] = {
            "ms": total,
            **{kind: ms / total for kind, ms in kinds.items() if ms / total >= LEAST_SHARE},
            "of_gemm_peak": whole[phase] / total / gflops / 1e6,
            "weights_of_gemm_peak": (whole[phase] - attention[phase]) / weights / gflops / 1e6,
            "attention_of_gemm_peak": attention[phase] / (total - weights) / gflops / 1e6,
        }
    return found


def table(found: dict[str, dict[str, float]]) -> str:
    """A block per phase, the largest share first."""
    lines = []
    for phase, facts_of in found.items():
        kinds = {name: share for name, share in facts_of.items() if name[0].isupper()}
        lines.append(f"{phase}: {facts_of['ms']:.0f} ms, {facts_of['of_gemm_peak']:.0%} of the GEMM rate")
        lines += [f"{share:8.1%}  {kind}" for kind, share in sorted(kinds.items(), key=lambda each: -each[1])]
        lines.append(
            f"          products with weights reach {facts_of['weights_of_gemm_peak']:.0%} of it, "
            f"all the rest, counted as attention, {facts_of['attention_of_gemm_peak']:.0%}"
        )
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    """Print the table and, last, one JSON object."""
    parser = report.arguments("kernels", __doc__)
    parser.add_argument("artifact", type=Path, nargs="?", default=Path("artifacts/mock-3000"))
    parser.add_argument("--tokens", type=int, default=1023)
    parser.add_argument("--beam-width", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=5)
    a = parser.parse_args(argv)
    run = report.begin(a)
    if not a.artifact.exists():
        mock_artifact(a.artifact, replace(SHAPE, max_history=1000), draft=False)
    config = load_config(a.artifact)
    if not config.levels <= a.tokens <= config.max_prompt:
        parser.error(
            f"--tokens: is {a.tokens}; from {config.levels} to {config.max_prompt} for this artifact"
        )
    kv_type = load_layout(Settings(a.artifact, a.artifact), config).kv_type
    gflops = openvino_gemm(kv_type, a.repeats)
    assert gflops  # OpenVINO is what is measured
    spent, beams = measure(a.artifact, a.tokens, a.beam_width, a.repeats)
    found = shares(spent, work(config, a.tokens, a.beam_width, kv_type, beams), gflops)
    passes = ", ".join(f"{count:.0f}" for count in beams)
    print(f"\nS {a.tokens}, BW {a.beam_width}, passes of {passes} beams, GEMM {gflops:.0f} GFLOP/s")
    print(table(found))
    run.publish({**found, "beams_of_passes": beams, "gemm_gflops": gflops}, repeats=a.repeats)


if __name__ == "__main__":
    main()
