"""Decode passes against a draft (NEZHA, Tables 1 and 3): the same server, prompts and beam width, in turn.

    genrec bench decoders artifacts/ml-1m artifacts/beauty [--speed-on artifacts/mock]

Speed: one server per beam width serves all ensembles; rounds of requests, one in flight at a time, take turns
between them. prefill, decode and verification are Triton's compute times of their models, system is the rest
of what a client waits. Of `recommend`, whose passes are one model, they are not seen: its parts are those of
`recommend_staged`, and the request's speed-up is over whichever of the two is faster. Quality: every artifact's
test items, or those of --users users, answered by the local runtime with either decoder. --speed-on is the
artifact to time (default: the first one named); `perf.kit.mock` makes one of 31 M parameters and prompts of 513
tokens.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean, median
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clients.wire import parse
from ensembles.local import LocalRecommender, request
from genrec.artifact import load_config
from genrec.catalogue.indices import load_validity
from genrec.engine.load import load_layout
from genrec.errors import GenrecError
from perf.kit import endpoints, machine, report, traffic, turns, worth
from perf.kit.counters import PROBE_EVERY_S, Seen, Triton, spent
from perf.kit.work import beams_of_passes, work
from perf.quality.quality import measure as quality

# Which models are which part of Table 1; the rest of what a client waits is `system`.
PARTS: dict[str, dict[str, list[str]]] = {
    "recommend": {},
    "recommend_staged": {"prefill": ["prefill"], "decode": ["beam_search", "decode"], "verify": ["validity_lookup"]},
    "recommend_draft": {
        "prefill": ["prefill_draft"], "decode": ["draft_beam"], "verify": ["validity_lookup"],
    },
}  # fmt: skip
DECODERS = {"recommend_staged": "staged", "recommend_draft": "draft"}
WARM_UP = 5
ARENA_SLOTS = 16


@dataclass(frozen=True)
class Speed:
    """One ensemble at one beam width, ms: the median request and its quartiles, and mean times per part, if seen."""

    ensemble: str
    beam_width: int
    requests: int
    p50_ms: float
    low_ms: float
    high_ms: float
    parts_ms: dict[str, float]


def one_round(triton: Triton, sample: Sequence[NDArray[np.int64]], top_k: int) -> tuple[list[float], Seen]:
    """Seconds of every request, and what Triton counted over them."""
    before, taken = triton.statistics(), []
    for history in sample:
        begun = time.perf_counter()
        triton.recommender.recommend(history, top_k)
        taken.append(time.perf_counter() - begun)
    return taken, spent(before, triton.settled(before, len(sample)))


def summarise(ensemble: str, width: int, rounds: Sequence[tuple[list[float], Seen]]) -> Speed:
    """Figures of one ensemble over all its rounds."""
    taken = [1000 * seconds for round_, _ in rounds for seconds in round_]
    parts = {
        part: sum(seen[model]["infer"] for _, seen in rounds for model in models) / len(taken) / 1e6
        for part, models in PARTS[ensemble].items()
    }
    low, middle, high = np.quantile(taken, (0.25, 0.5, 0.75))
    if parts:
        parts["system"] = fmean(taken) - sum(parts.values())
    return Speed(ensemble, width, len(taken), float(middle), float(low), float(high), parts)


def speed(
    artifact: Path, widths: Sequence[int], requests: int, rounds: int, top_k: int, threads: int
) -> list[Speed]:
    """Every ensemble at every beam width. Raises InputError, ArtifactError, LaunchError."""
    sample = traffic.histories(artifact, requests)
    measured: dict[tuple[int, str], list[tuple[list[float], Seen]]] = {}
    for width in widths:
        with ExitStack() as stack:
            server = stack.enter_context(
                endpoints.endpoint(
                    artifact,
                    beam_width=width,
                    threads=threads,
                    arena_slots=ARENA_SLOTS,
                    probe_every_s=PROBE_EVERY_S,
                )
            )
            clients = {name: Triton(replace(server, ensemble=name)) for name in PARTS}
            for client in clients.values():
                stack.callback(client.close)
                one_round(client, sample[:WARM_UP], min(top_k, width))
            arms = {
                name: partial(one_round, client, sample, min(top_k, width))
                for name, client in clients.items()
            }
            given = turns.in_turns(arms, rounds, label=f"BW {width}")
            measured |= {(width, name): found for name, found in given.items()}
    return [summarise(name, width, found) for (width, name), found in sorted(measured.items())]


def without_triton(
    artifact: Path, width: int, requests: int, top_k: int, threads: int
) -> dict[str, dict[str, float]]:
    """Median ms per step of the same ensembles in one process, one request at a time, in turn."""
    sample = traffic.histories(artifact, requests)
    taken: dict[str, dict[str, list[float]]] = {name: {} for name in DECODERS}
    with ExitStack() as stack:
        runtimes = {
            name: stack.enter_context(
                LocalRecommender(artifact, width, slots=2, decoder=decoder, threads=threads)
            ).runtime
            for name, decoder in DECODERS.items()
        }
        asked = [*sample[:1], *sample]
        for number, name in turns.interleaved([*runtimes], len(asked), "without Triton"):
            runtime = runtimes[name]
            runtime.seconds.clear()
            runtime.run([request(asked[number].tolist(), min(top_k, width))])
            for step, seconds in runtime.seconds.items():
                if number:  # the first compiles
                    taken[name].setdefault(step, []).append(1000 * seconds)
    return {name: {step: median(ms) for step, ms in steps.items()} for name, steps in taken.items()}


def validity(
    artifact: Path, width: int, requests: int, top_k: int
) -> dict[str, tuple[worth.Worth, float | None]]:
    """What drafts' answers are worth, by the level of verification; and the share of drafts that were items before it,
    None where nothing was drafted.
    """
    sample, found = traffic.histories(artifact, requests), {}
    for mode in ("every", "last"):
        with LocalRecommender(artifact, width, decoder="draft", verify=mode) as local:
            given = local.recommend([h.tolist() for h in sample], min(top_k, width))
            candidates, lost = (int(n) for n in local.runtime.drafted)
        answers: list[worth.Answer] = []
        for answer in given:
            if isinstance(answer, GenrecError):
                raise answer
            answers.append(parse(SimpleNamespace(as_numpy=answer.get)))
        checked = worth.worth_of(artifact, answers, min(top_k, width))
        found[mode] = checked, 1 - lost / candidates if candidates else None
    return found


def qualities(artifact: Path, width: int, users: int | None) -> dict[str, dict[str, Any]]:
    """HR and NDCG on test items by beam search, and by drafts verified at every level and at the last."""
    ways = {"beam": ("beam", "every"), "draft": ("draft", "every"), "draft, last": ("draft", "last")}
    return {
        name: quality(artifact, width, True, users, decoder=decoder, verify=verify)
        for name, (decoder, verify) in ways.items()
    }


def table(found: Sequence[Speed]) -> str:
    """Table 1 for people."""
    names = ("prefill", "decode", "verify", "system")
    rows = [
        (
            s.ensemble, s.beam_width, f"{s.p50_ms:.2f}", f"{s.low_ms:.2f} to {s.high_ms:.2f}",
            *(f"{s.parts_ms[part]:.2f}" if s.parts_ms else "" for part in names),
        )
        for s in found
    ]  # fmt: skip
    return report.columns(("ensemble", "BW", "p50 ms", "quartiles", *names), rows)


def compare_speed(a: argparse.Namespace, timed: Path, widths: Sequence[int]) -> dict[str, Any]:
    """Print what is timed of `timed`; the figures of it."""
    roofline, config, widest = machine.roofline(), load_config(timed), max(widths)
    found = speed(timed, widths, a.requests, a.rounds, a.top_k, a.threads)
    print(f"\n{timed.name}\n{table(found)}")
    by = {(s.ensemble, s.beam_width): s for s in found}
    fused, staged, draft = (by[name, widest] for name in PARTS)
    with LocalRecommender(timed, widest) as local:
        kv_type = load_layout(local.settings, config).kv_type
    beams = beams_of_passes(load_validity(timed, config), widest)
    least = work(config, config.max_prompt, widest, kv_type, beams).least_ms(roofline, kv_type == "bf16")
    alone = without_triton(timed, widest, a.requests, a.top_k, a.threads)
    in_words = {name: ", ".join(f"{k} {v:.2f}" for k, v in steps.items()) for name, steps in alone.items()}
    print(f"\nroofline at {config.max_prompt} tokens, BW {widest}, ms:"
          f" prefill {least['prefill']:.2f}, decode {least['decode']:.2f}")  # fmt: skip
    for name, words in in_words.items():
        print(f"{name} without Triton, BW {widest}, ms: {words}")
    valid = validity(timed, widest, a.requests, a.top_k)
    for mode, (checked, before) in valid.items():
        of_drafts = "not known" if before is None else f"{before:.2%}"
        print(f"verified at {mode}: {worth.line(checked)}; before it {of_drafts} of the drafts were items")
    drafted = draft.parts_ms["decode"] + draft.parts_ms["verify"]
    return {
        f"decode_speedup_bw{widest}": staged.parts_ms["decode"] / draft.parts_ms["decode"],
        f"request_speedup_bw{widest}": min(fused.p50_ms, staged.p50_ms) / draft.p50_ms,
        f"request_speedup_over_bw{widest}": {s.ensemble: s.p50_ms / draft.p50_ms for s in (fused, staged)},
        f"draft_over_prefill_bw{widest}": drafted / draft.parts_ms["prefill"],
        "answers": {
            mode: {**checked._asdict(), "before_verification": before}
            for mode, (checked, before) in valid.items()
        },
        "speed": [asdict(s) for s in found],
        "without_triton_ms": alone,
        "roofline_ms": least,
    }


def compare_quality(artifacts: Sequence[Path], width: int, users: int | None) -> dict[str, Any]:
    """Print HR and NDCG of every artifact and way; the figures of it."""
    measured = {artifact.name: qualities(artifact, width, users) for artifact in artifacts}
    metrics = ("HR@5", "NDCG@5", "HR@10", "NDCG@10")
    rows = [
        (f"{name}, {way}", *(f"{figures['model'][m]:.4f}" for m in metrics))
        for name, ways in measured.items()
        for way, figures in ways.items()
    ]
    print(report.columns(("", *metrics), rows))
    ndcg = {n: [ways[way]["model"]["NDCG@10"] for way in ("draft", "beam")] for n, ways in measured.items()}
    ratio = {name: draft / beam if beam else None for name, (draft, beam) in ndcg.items()}
    return {"ndcg10_ratio": ratio, "quality": measured}


def main(argv: Sequence[str] | None = None) -> None:
    """Print the tables and, last, one JSON object."""
    parser = report.arguments("decoders", __doc__)
    parser.add_argument("artifacts", type=Path, nargs="+", help="whose quality is compared")
    parser.add_argument("--speed-on", type=Path, help="default: the first artifact")
    parser.add_argument("--beam-widths", default="10,128,512")
    parser.add_argument("--users", type=int, help="a sample of test users instead of all")
    report.add_options(parser, requests=30, rounds=4, top_k=10, threads=0)
    a = parser.parse_args(argv)
    widths = report.numbers_of(a, "beam_widths")
    for each in (a.speed_on or a.artifacts[0], *a.artifacts):
        endpoints.check_drafts(each)
    run = report.begin(a)
    figures = compare_speed(a, a.speed_on or a.artifacts[0], widths)
    figures |= compare_quality(a.artifacts, min(128, max(widths)), a.users)
    spread = {
        f"ms, {s['ensemble']}, BW {s['beam_width']}": (s["low_ms"], s["high_ms"]) for s in figures["speed"]
    }
    run.publish(figures, repeats=a.rounds, spread=spread)


if __name__ == "__main__":
    main()
