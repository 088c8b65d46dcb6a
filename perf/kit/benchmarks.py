"""Every benchmark there is: the one table that `genrec bench` lists and runs from."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import NamedTuple

from genrec.errors import InputError


class Benchmark(NamedTuple):
    """Where it is, the question it answers, and about how many minutes it takes as it is called by default."""

    module: str
    question: str
    minutes: float


BENCHMARKS = {
    # Against a server.
    "sweep": Benchmark("perf.slo.sweep", "which request rate still holds the P99?", 10),
    "replay": Benchmark("perf.slo.replay", "what does a user wait, at one rate?", 1.5),
    "overload": Benchmark("perf.slo.overload", "who waits and who is refused beyond the capacity?", 2),
    "soak": Benchmark("perf.slo.soak", "does anything grow under a steady load?", 6),
    "swap": Benchmark("perf.slo.swaps", "what does a catalogue swap under load cost, and is it clean?", 2),
    "rollout": Benchmark("perf.slo.rollouts", "does a rollout lose a request, or mix two answers?", 3),
    "recovery": Benchmark("perf.slo.recovery", "how long is a server away when a process dies?", 3),
    "stages": Benchmark("perf.slo.request_stages", "where does the time of a request go?", 3),
    "ablation": Benchmark("perf.slo.ablation", "what is each part of the scheduling worth?", 5),
    "instances": Benchmark("perf.slo.instances", "how many processes of each model pay?", 8),
    "company": Benchmark("perf.slo.company", "how long should a free stream wait for company?", 3),
    "returning": Benchmark(
        "perf.slo.returning", "what is a user's last prompt worth, when he comes again?", 5
    ),
    "batching": Benchmark("perf.slo.batching", "what are batches by tokens worth beside Triton's own?", 9),
    # Parts of a request, in one process.
    "kernels": Benchmark("perf.parts.kernels", "which kinds of nodes take the time of a pass?", 1),
    "passes": Benchmark(
        "perf.parts.passes", "what does leaving out beams save, and is the answer the same?", 5
    ),
    "engine_ablation": Benchmark("perf.parts.engine_ablation", "what is each part of the engine worth?", 2),
    "constraint": Benchmark("perf.parts.constraint", "what does the constraint cost at a million items?", 2),
    "selection": Benchmark(
        "perf.parts.selection", "how are the W best of W x K candidates found fastest?", 3
    ),
    "hashset": Benchmark("perf.parts.hash_sets", "how is the set of valid semantic IDs best held?", 4),
    "memory": Benchmark("perf.parts.peak_memory", "how much memory does one request take?", 10),
    "machine": Benchmark("perf.parts.roofline", "how fast could this machine be?", 0.1),
    # Ranking.
    "rank": Benchmark(
        "perf.rank.rank", "what is reuse of KV worth to a ranking, by each choice of the prefix?", 8
    ),
    "relay": Benchmark(
        "perf.relay.bench", "what is a prefix worth that is computed one stage ahead of its ranking?", 60
    ),
    "relay_flood": Benchmark(
        "perf.relay.flood", "do signals that no ranking follows harm those who rank?", 6
    ),
    "relay_fetch": Benchmark(
        "perf.relay.fetch", "is a prefix on another server cheaper to fetch or to compute again?", 2
    ),
    "rank_peers": Benchmark("perf.rank.peers", "how fast are candidates ranked beside what people use?", 3),
    "pool_sim": Benchmark("perf.rank.simulate", "what does each choice of the prefix save, by tokens?", 3),
    "rank_together": Benchmark("perf.rank.together", "what do rankings gain as one pass?", 2),
    "rank_company": Benchmark("perf.rank.company", "what is that worth to a server under load?", 4),
    "placement": Benchmark("perf.rank.placement", "which items belong on every node?", 2),
    "placement_links": Benchmark(
        "perf.rank.links", "the same, measured on links of several bandwidths between hosts of their own", 8
    ),
    # Training.
    "data_scale": Benchmark(
        "perf.training.data_scale", "how much memory and time do interactions to semantic IDs take?", 60
    ),
    "embedding": Benchmark(
        "perf.training.embedding", "how fast does a dynamic table find a row by its id?", 10
    ),
    "hstu_attention": Benchmark(
        "perf.training.hstu_attention", "what is an HSTU layer worth without scores in memory?", 4
    ),
    "training": Benchmark(
        "perf.training.training", "how fast do tables train over ranks, and what does each part save?", 15
    ),
    # What the answers are worth.
    "quality": Benchmark("perf.quality.quality", "how good are the served lists, beside two baselines?", 1),
    "decoders": Benchmark("perf.quality.decoders", "what does a draft save, and what does it lose?", 15),
    "draft_quality": Benchmark("perf.quality.draft_quality", "which parts of the draft head matter?", 60),
    "rank_quality": Benchmark(
        "perf.quality.rank_quality", "is a ranker better than the generator's order?", 120
    ),
    "next_quality": Benchmark("perf.quality.next_quality", "how good is HSTU for the next item?", 3),
    "window_quality": Benchmark(
        "perf.quality.window_quality", "what does a window that moves in steps cost a long history?", 3
    ),
    "table_quality": Benchmark(
        "perf.quality.table_quality",
        "do dynamic tables, fp16 rows and bf16 products keep the quality, do experts add?",
        30,
    ),
    "further_quality": Benchmark(
        "perf.quality.further_quality", "what is training further worth, beside training anew?", 35
    ),
    # Beside others, and on other devices.
    "peers": Benchmark("perf.peers.__main__", "how much faster than what people use today?", 60),
    "returning_peers": Benchmark(
        "perf.peers.returning", "and how much faster for users who come again, beside a prefix cache?", 6
    ),
    "gpu": Benchmark("perf.gpu.run", "how fast are the kernel and whole requests on a GPU?", 8),
}


def listing() -> str:
    """A line for every benchmark."""
    width = max(map(len, BENCHMARKS))
    lines = [f"  {name:{width}}  {of.minutes:>4g} min  {of.question}" for name, of in BENCHMARKS.items()]
    return "\n".join(["`genrec bench NAME --help` tells more; `--save` keeps the figures.", "", *lines])


def run(name: str, options: Sequence[str]) -> None:
    """Run one by its name, with its own options. Raises InputError, and what the benchmark raises."""
    if name not in BENCHMARKS:
        raise InputError("benchmark", f"is {name!r}", ", ".join(BENCHMARKS))
    import_module(BENCHMARKS[name].module).main(options)
