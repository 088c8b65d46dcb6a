"""Where the time of a request goes: every stage of the ensemble, what Triton adds, the same steps without
Triton.

    genrec bench stages artifacts/beauty --beam-widths 32,128,512

One server per beam width; rounds of requests, one after the other, take turns between the widths, and at each
between Triton and the local runtime, so that a slow minute of the machine hits all of them and neither always
comes first. Only one request is in flight:
this is latency, perf.slo.sweep is load.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clients.wire import Recommendation
from ensembles.local import LocalRecommender, request
from genrec.artifact import load_config
from genrec.catalogue.indices import load_validity
from genrec.engine.load import load_layout
from genrec.progress import counting
from genrec.steps import Answer, Step, Tensors
from perf.kit import endpoints, machine, report, traffic, turns, worth
from perf.kit.counters import PROBE_EVERY_S, Seen, Triton, spent
from perf.kit.work import beams_of_passes, work
from perf.slo.replay import percentile

ENSEMBLE = "recommend_staged"  # of which Triton sees every stage
ARENA_SLOTS = 16  # one request is in flight, so a small arena does
WARM_UP = 5


class Served(NamedTuple):
    """Requests of one beam width through Triton, in one turn."""

    latencies: list[float]  # seconds
    triton: Seen  # differences of Triton's statistics over the turn
    prompt_tokens: float
    answers: list[Recommendation]


class Round(NamedTuple):
    """The same requests through Triton and by the local runtime."""

    served: Served
    local: dict[str, float]  # seconds per step, of all requests


@dataclass(frozen=True)
class Stages:
    """One beam width; all `_ms` but the percentiles are means per request, over all calls of a model."""

    beam_width: int
    requests: int
    p50_ms: float
    p99_ms: float
    p50_of_rounds_ms: list[float]  # the spread
    mean_ms: float
    stages_ms: dict[str, float]  # Triton's compute (infer): the step, its adapter, the way to its process
    queue_ms: dict[str, float]
    copies_ms: dict[str, float]  # Triton's compute input and output: tensors into and out of shared memory
    local_ms: dict[str, float]  # the same steps in one process
    calls: dict[str, float]
    # Inside the ensemble but in none of its models; below 0 when a model's clean-up overlaps with the next model.
    ensemble_ms: float
    client_ms: float  # client library, network, the server's front
    hops_ms: float  # mean_ms less all stages_ms: what Triton itself and the client take
    over_local_ms: float  # mean_ms less all local_ms: what serving through Triton costs in all
    local_sum_ms: float
    triton_bytes: int  # of all tensors of all calls for the longest history, inputs and outputs
    arena_bytes: int  # KV and logits of the request, which do not travel
    prompt_tokens: float
    least_ms: dict[str, float]  # prefill and decode at the machine's roofline
    valid_share: float | None  # this and the following: see `worth.Worth`
    distinct_share: float | None
    enough_share: float | None
    answers_checked: int


class ByteCountingStep:
    """A step that adds up the bytes of its tensors."""

    def __init__(self, step: Step) -> None:
        self._step, self.bytes = step, 0

    def run(self, requests: list[Tensors]) -> list[Answer]:
        """See `Step.run`."""
        answers = self._step.run(requests)
        for tensors in [*requests, *(a for a in answers if isinstance(a, dict))]:
            self.bytes += sum(tensor.nbytes for tensor in tensors.values())
        return answers


def tensor_bytes(local: LocalRecommender, history: NDArray[np.int64], top_k: int) -> int:
    """Bytes of all tensors into and out of the steps for one request; each is a copy into or out of a stub."""
    steps = local.runtime._steps
    counting = {name: ByteCountingStep(step) for name, step in steps.items()}
    local.runtime._steps = counting  # type: ignore[assignment]
    try:
        local.runtime.run([request(history.tolist(), top_k)])
    finally:
        local.runtime._steps = steps
    return sum(step.bytes for step in counting.values())


def through_triton(triton: Triton, sample: Sequence[NDArray[np.int64]], top_k: int) -> Served:
    """One request at a time."""
    before, latencies, answers = triton.statistics(), [], []
    for history in sample:
        begun = time.perf_counter()
        answers.append(triton.recommender.recommend(history, top_k))
        latencies.append(time.perf_counter() - begun)
    counted = spent(before, triton.settled(before, len(sample)))
    return Served(latencies, counted, statistics.fmean(answer.prompt_tokens for answer in answers), answers)


def without_triton(
    local: LocalRecommender, sample: Sequence[NDArray[np.int64]], top_k: int
) -> dict[str, float]:
    """Seconds per step, one request at a time."""
    local.runtime.seconds.clear()
    for history in sample:
        local.runtime.run([request(history.tolist(), top_k)])
    return dict(local.runtime.seconds)


def in_turns(
    pairs: Mapping[int, tuple[Triton, LocalRecommender]], sample: Sequence[NDArray[np.int64]], top_k: int,
    rounds: int,
) -> dict[int, list[Round]]:  # fmt: skip
    """Rounds of every beam width; Triton and the local runtime take turns, so that each comes first as often."""
    arms: dict[tuple[int, bool], Callable[[], Any]] = {}
    for width, (triton, local) in pairs.items():
        arms[width, True] = partial(through_triton, triton, sample, min(top_k, width))
        arms[width, False] = partial(without_triton, local, sample, min(top_k, width))
    given = turns.in_turns(arms, rounds, label="rounds")
    return {
        width: [Round(*both) for both in zip(given[width, True], given[width, False], strict=True)]
        for width in pairs
    }


def summarise(width: int, rounds: Sequence[Round], extra: dict[str, Any]) -> Stages:
    """Figures per request from the rounds of one beam width."""
    served = [one.served for one in rounds]
    latencies = [latency for one in served for latency in one.latencies]
    requests = len(latencies)
    mean_ms = 1000 * sum(latencies) / requests
    models = list(rounds[0].local)  # in the order of the ensemble

    def ms(model: str, *keys: str) -> float:
        return sum(one.triton[model][key] for one in served for key in keys) / requests / 1e6

    stages = {model: ms(model, "infer") for model in models}
    local = {model: 1000 * sum(one.local[model] for one in rounds) / requests for model in models}
    inside = ms(ENSEMBLE, "success")
    return Stages(
        beam_width=width,
        requests=requests,
        p50_ms=1000 * statistics.median(latencies),
        p99_ms=1000 * (percentile(latencies, 0.99) or 0.0),
        p50_of_rounds_ms=[1000 * statistics.median(one.latencies) for one in served],
        mean_ms=mean_ms,
        stages_ms=stages,
        queue_ms={model: ms(model, "queue") for model in models},
        copies_ms={model: ms(model, "input", "output") for model in models},
        local_ms=local,
        calls={model: sum(one.triton[model]["calls"] for one in served) / requests for model in models},
        ensemble_ms=inside - sum(ms(model, "success") for model in models),
        client_ms=mean_ms - inside,
        hops_ms=mean_ms - sum(stages.values()),
        over_local_ms=mean_ms - sum(local.values()),
        local_sum_ms=sum(local.values()),
        prompt_tokens=statistics.fmean(one.prompt_tokens for one in served),
        **extra,
    )


def stages(
    artifact: Path,
    beam_widths: Sequence[int],
    *,
    requests: int,
    rounds: int,
    threads: int,
    top_k: int = 10,
    seed: int = 0,
) -> list[Stages]:
    """Every beam width, `rounds` rounds of `requests`. Raises InputError, ArtifactError, LaunchError."""
    sample = traffic.histories(artifact, requests, seed)
    config, roofline = load_config(artifact), machine.roofline()
    index = load_validity(artifact, config)
    extra: dict[int, dict[str, Any]] = {}
    with ExitStack() as stack:
        pairs: dict[int, tuple[Triton, LocalRecommender]] = {}
        for width in counting("starting", len(beam_widths), "server", iterable=beam_widths):
            server = stack.enter_context(
                endpoints.endpoint(
                    artifact,
                    ensemble=ENSEMBLE,
                    beam_width=width,
                    threads=threads,
                    arena_slots=ARENA_SLOTS,
                    probe_every_s=PROBE_EVERY_S,
                )
            )
            triton = Triton(server)
            stack.callback(triton.close)
            local = stack.enter_context(
                LocalRecommender(artifact, width, slots=ARENA_SLOTS, decoder="staged", threads=threads)
            )
            pairs[width] = triton, local
        in_turns(pairs, sample[:WARM_UP], top_k, 1)
        measured = in_turns(pairs, sample, top_k, rounds)
        for width, (_, local) in pairs.items():
            kv_type = load_layout(local.settings, config).kv_type
            tokens = round(statistics.fmean(one.served.prompt_tokens for one in measured[width]))
            cost = work(config, tokens, width, kv_type, beams_of_passes(index, width))
            answers = [answer for one in measured[width] for answer in one.served.answers]
            extra[width] = {
                **worth.worth_of(artifact, answers, min(top_k, width))._asdict(),
                "triton_bytes": tensor_bytes(local, max(sample, key=len), min(top_k, width)),
                "arena_bytes": cost.kv_bytes,
                "least_ms": cost.least_ms(roofline, kv_type == "bf16"),
            }
    return [summarise(width, measured[width], extra[width]) for width in beam_widths]


def table(found: Stages) -> str:
    """One beam width for people."""
    lines = [
        f"beam width {found.beam_width}: p50 {found.p50_ms:.2f} ms, p99 {found.p99_ms:.2f} ms"
        f" of {found.requests} requests; p50 of rounds {min(found.p50_of_rounds_ms):.2f}"
        f" to {max(found.p50_of_rounds_ms):.2f}; {found.prompt_tokens:.0f} prompt tokens",
        f"  {'mean ms per request':24}{'calls':>7}{'compute':>10}{'copies':>10}{'queue':>10}"
        f"{'no Triton':>11}{'roofline':>10}",
    ]
    for model, stage in found.stages_ms.items():
        least = f"{found.least_ms[model]:10.3f}" if model in found.least_ms else ""
        lines.append(
            f"  {model:24}{found.calls[model]:7.1f}{stage:10.3f}{found.copies_ms[model]:10.3f}"
            f"{found.queue_ms[model]:10.3f}{found.local_ms[model]:11.3f}{least}"
        )
    sums = (found.stages_ms, found.copies_ms, found.queue_ms, found.local_ms)
    total = "".join(f"{sum(s.values()):{w}.3f}" for s, w in zip(sums, (10, 10, 10, 11), strict=True))
    lines.append(f"  {'all models':24}{sum(found.calls.values()):7.1f}{total}")
    lines.append(
        f"  between models {found.ensemble_ms:.3f}, client and network {found.client_ms:.3f}, end to end"
        f" {found.mean_ms:.3f}; outside the stages (hops) {found.hops_ms:.3f}"
    )
    lines.append(
        f"  {found.triton_bytes} bytes of tensors cross Triton, {found.arena_bytes} bytes stay in the arena"
    )
    checked = worth.Worth(found.valid_share, found.distinct_share, found.enough_share, found.answers_checked)
    return "\n".join([*lines, f"  {worth.line(checked)}"])


def main(argv: Sequence[str] | None = None) -> None:
    """Print a table per beam width and one JSON object as the last line."""
    parser = report.arguments("stages", __doc__)
    parser.add_argument("artifact", type=Path)
    parser.add_argument("--beam-widths", default="32,128,512", help="one server is started for each")
    report.add_options(parser, requests=50, rounds=4, top_k=10, threads=0, seed=0)
    a = parser.parse_args(argv)
    widths = report.numbers_of(a, "beam_widths")
    run = report.begin(a)
    found = stages(
        a.artifact,
        widths,
        requests=a.requests,
        rounds=a.rounds,
        top_k=a.top_k,
        seed=a.seed,
        threads=a.threads,
    )
    print("\n\n".join(table(one) for one in found))
    # Every figure by beam width.
    figures = {f.name: {str(one.beam_width): asdict(one)[f.name] for one in found} for f in fields(Stages)}
    spread = {f"p50_ms, BW {one.beam_width}": turns.extremes(one.p50_of_rounds_ms)[1:] for one in found}
    run.publish(figures, repeats=a.rounds, spread=spread)


if __name__ == "__main__":
    main()
