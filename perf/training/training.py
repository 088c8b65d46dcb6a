"""Training tables over ranks: beside TorchRec and plain torch, what each part saves, and whether it is equal.

    genrec bench training [--quick] [--dims 64,512] [--rounds 5] [--no-install]

The first run makes an environment with TorchRec by pip (1.1 GB). All ways train the same batches on the same number of
gloo ranks, a thread each, in turns: 128 sequences per rank of about 95 events with four features, ids by Zipf's law,
half the sum of squares as the loss, row-wise Adagrad. Speeds are medians of rounds; the ratio is against the faster of
TorchRec's row-wise and table-wise plans. Plain torch has all rows on every rank, so it is run at dimension 64 only, and
plain Adagrad, as it has no other.

Ids, bytes and rows are counted, not timed, at 2, 4 and 8 ranks; balance is computed by the code that training uses, on
lengths with the paper's mean and maximum. Neither says how fast a cluster is. `equal_to_one_process` compares vectors
after training on two ranks with those of one process that took the same global batches.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np

from genrec.errors import InputError
from perf.kit import report
from perf.kit.turns import extremes, in_turns
from perf.peers.refusal import Refusal
from perf.training.group import RankGroup, add_options, python_for
from perf.training.workers.lookups import lengths
from training.balance import Cost, assign, cut

OURS, ROW_WISE, TABLE_WISE, PLAIN = "ours", "torchrec row-wise", "torchrec table-wise", "torch DDP"
# Way -> script, environment, its own options.
WAYS: dict[str, tuple[str, str, dict[str, Any]]] = {
    OURS: ("worker_ours.py", "", {}),
    ROW_WISE: ("worker_torchrec.py", "torchrec", {"plan": "row-wise"}),
    TABLE_WISE: ("worker_torchrec.py", "torchrec", {"plan": "table-wise"}),
    PLAIN: ("worker_ddp.py", "", {}),
}
PLAIN_DIM = 64
TOLD = (64, 512)  # dimensions that the tables of the docs have, of what is kept under the usual name
RANKS = 2
STAGES = {"none": (False, False), "first": (True, False), "second": (False, True), "both": (True, True)}
MEAN, LONGEST = 600, 3000  # tokens of the paper's sequences (section 6.1)
TOLERANCE = 1e-5


def speeds(a: argparse.Namespace, dim: int, skipped: dict[str, str]) -> dict[str, list[float]]:
    """Sequences per second of every way that runs here, round by round."""
    total = (a.rounds + 1) * a.steps
    common = {"dim": dim, "vocabulary": a.vocabulary, "sequences": a.sequences, "steps": total}
    with ExitStack() as stack:
        groups = {}
        for name, (script, environment, options) in WAYS.items():
            if name == PLAIN and dim != PLAIN_DIM:
                continue
            try:
                python = python_for(environment, a.folder / "envs", a.install)
                groups[name] = stack.enter_context(RankGroup(python, script, RANKS, **common, **options))
            except Refusal as refusal:
                skipped[f"{name}, dimension {dim}"] = refusal.reason
        done = dict.fromkeys(groups, 0)

        def turn(name: str) -> float:
            first, done[name] = done[name], done[name] + a.steps
            seconds = max(
                each["seconds"] for each in groups[name].ask(do="train", first=first, last=done[name])
            )
            return a.steps * a.sequences * RANKS / seconds

        arms = {name: lambda name=name: turn(name) for name in groups}
        return in_turns(arms, a.rounds, warm_ups=1, label=f"dimension {dim}")


def savings(a: argparse.Namespace, ranks: int) -> dict[str, dict[str, int]]:
    """Ids asked and sent, bytes sent and rows read by all ranks, per stages of deduplication."""
    options = {"dim": PLAIN_DIM, "vocabulary": a.vocabulary, "sequences": a.sequences, "steps": a.count_steps}
    with RankGroup(python_for("", a.folder, False), "worker_ours.py", ranks, **options) as group:
        found = {
            name: group.ask(do="count", first=first, second=second)
            for name, (first, second) in STAGES.items()
        }
    return {
        name: {key: sum(each[key] for each in ranks) for key in ranks[0]} for name, ranks in found.items()
    }


def distance_to_one_process(a: argparse.Namespace) -> float:
    """The largest difference of a vector's number, of items trained on two ranks and by one process."""
    options = {"dim": 16, "vocabulary": 20_000, "sequences": 32, "steps": a.steps}
    ids, vectors = list(range(2000)), []
    for ranks in (RANKS, 1):
        with RankGroup(
            python_for("", a.folder, False), "worker_ours.py", ranks, shares=RANKS // ranks, **options
        ) as group:
            group.ask(do="train", first=0, last=a.steps)
            held = [each for rank in group.ask(do="read", ids=ids) for each in rank.items()]
            if len({key for key, _ in held}) < len(held):
                return float("inf")  # an id on two ranks
            vectors.append(dict(held))
    two, one = vectors
    if two.keys() != one.keys():
        return float("inf")
    return float(np.max([np.abs(np.array(two[key]) - one[key]).max() for key in one]))  # NaN stays


def balance(ranks: int, sequences: int, steps: int) -> dict[str, dict[str, float]]:
    """Per way to share out sequences: largest over mean tokens of a rank, and the share of time that ranks work.

    Half of all work is quadratic in the length. Means over steps.
    """
    draw = np.random.default_rng(0)
    sample = lengths(draw, 100_000, MEAN, LONGEST)
    work = Cost(float((sample.astype(float) ** 2).mean() / sample.mean()))
    found: dict[str, list[tuple[float, float]]] = {}
    for _ in range(steps):
        drawn = [lengths(draw, 4 * sequences, MEAN, LONGEST) for _ in range(ranks)]
        target = sequences * sample.mean()
        cuts = [each[: cut(each.astype(float), target)] for each in drawn]
        pool = np.concatenate([each[:sequences] for each in drawn])
        shares = {
            "fixed number of sequences": [each[:sequences] for each in drawn],
            "Algorithm 1, by tokens": cuts,
            "exchange, by tokens": _split(pool, assign(Cost().of(pool), ranks), ranks),
            "exchange, by cost": _split(pool, assign(work.of(pool), ranks), ranks),
        }
        for name, parts in shares.items():
            tokens = np.array([each.sum() for each in parts])
            costs = np.array([work.of(each).sum() for each in parts])
            found.setdefault(name, []).append((tokens.max() / tokens.mean(), costs.mean() / costs.max()))
    means = {name: np.mean(each, 0) for name, each in found.items()}
    return {name: {"tokens_over_mean": round(t, 4), "busy": round(b, 4)} for name, (t, b) in means.items()}


def _split(values: np.ndarray, owners: np.ndarray, ranks: int) -> list[np.ndarray]:
    return [values[owners == rank] for rank in range(ranks)]


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """What is asked for."""
    parser = report.arguments("training", __doc__)
    add_options(parser)
    parser.add_argument("--dims", default=",".join(map(str, TOLD)))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=8, help="per round")
    a = parser.parse_args(argv)
    a.count_steps, a.balance_steps = 4, 60
    if a.quick:
        a.dims, a.rounds, a.steps, a.sequences, a.vocabulary = "64", 1, 1, 8, 10_000
        a.count_steps, a.balance_steps = 1, 2
    return a


def main(argv: Sequence[str] | None = None) -> None:
    """Print tables and, last, one JSON object."""
    a = arguments(argv)
    dims = report.numbers_of(a, "dims")
    if a.save and not a.label and (missing := [str(dim) for dim in TOLD if dim not in dims]):
        problem = f"leave out {', '.join(missing)}, which the tables of the docs have"
        raise InputError("dims", problem, "these too, or a --label for a result of its own")
    run = report.begin(a)
    skipped: dict[str, str] = {}
    figures: dict[str, Any] = {"sequences_s": {}, "skipped": skipped}
    spread: dict[str, tuple[float, float]] = {}
    for dim in dims:
        found = speeds(a, dim, skipped)
        middles = {name: extremes(rounds) for name, rounds in found.items()}
        figures["sequences_s"][str(dim)] = {name: round(each.median, 1) for name, each in middles.items()}
        spread |= {f"{name}, dimension {dim}": (each.low, each.high) for name, each in middles.items()}
        rows = [(name, f"{m.median:.0f}", f"{m.low:.0f} to {m.high:.0f}") for name, m in middles.items()]
        print(
            f"\ndimension {dim}, {RANKS} ranks\n" + report.columns(("", "sequences/s", "least to most"), rows)
        )
        peers = [middles[name].median for name in (ROW_WISE, TABLE_WISE) if name in middles]
        figures[f"over_torchrec_dim{dim}"] = round(middles[OURS].median / max(peers), 3) if peers else None
        if PLAIN in middles:
            figures[f"over_ddp_dim{dim}"] = round(middles[OURS].median / middles[PLAIN].median, 3)
    figures["dedup"] = {str(ranks): savings(a, ranks) for ranks in (2, 4, 8)}
    for ranks, stages in figures["dedup"].items():
        rows = [(name, *each.values()) for name, each in stages.items()]
        print(f"\n{ranks} ranks, {a.count_steps} steps\n" + report.columns(("stages", *stages["none"]), rows))
    most = figures["dedup"]["8"]
    for name, key in (("dedup_bytes_ratio", "bytes_sent"), ("rows_read_ratio", "rows_read")):
        figures[name] = round(most["none"][key] / most["both"][key], 3)
    figures["balance"] = {str(ranks): balance(ranks, 128, a.balance_steps) for ranks in (8, 64)}
    for ranks, ways in figures["balance"].items():
        rows = [(name, *each.values()) for name, each in ways.items()]
        print(f"\n{ranks} ranks\n" + report.columns(("sequences by", "tokens, largest/mean", "busy"), rows))
    figures["token_imbalance"] = figures["balance"]["64"]["exchange, by tokens"]["tokens_over_mean"]
    figures["distance_to_one_process"] = distance_to_one_process(a)
    figures["equal_to_one_process"] = figures["distance_to_one_process"] <= TOLERANCE
    for name, reason in skipped.items():
        print(f"skipped: {name}: {reason}")
    run.publish(figures, repeats=a.rounds, spread=spread)


if __name__ == "__main__":
    main()
