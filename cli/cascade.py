"""`genrec cascade`: a data set's users through pre-inference, retrieval and ranking, and where their time went."""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from cli.options import add_artifact, at_least
from cli.rank import reads_times
from genrec.rank.options import MOST_CANDIDATES
from genrec.settings import MAX_DEADLINE_MS

if TYPE_CHECKING:
    from clients.cascade import CascadeAnswer
    from training.data import Histories


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options."""
    add_artifact(parser)
    parser.add_argument("--url", required=True, help="host:port of a server or of a router")
    parser.add_argument("--protocol", choices=("grpc", "http"), default="grpc")
    parser.add_argument("--users", type=at_least(1), default=200, help="a sample; default: %(default)s")
    parser.add_argument(
        "--retrieve",
        type=at_least(1, MOST_CANDIDATES),
        default=100,
        help=f"candidates of a user, at most the beam width and {MOST_CANDIDATES}; default: 100",
    )
    parser.add_argument("--top-k", type=int, default=10)
    parser.add_argument(
        "--cascade-ms",
        type=at_least(1, MAX_DEADLINE_MS),
        default=135,
        help=f"from start to answer, 1 to {MAX_DEADLINE_MS}; default: 135",
    )
    parser.add_argument("--seed", type=at_least(0), default=0, help="of the sample")


def run(a: argparse.Namespace) -> None:
    """One user after the other; a table at the end."""
    from clients.cascade import Cascade, recommended_by
    from clients.ranker import Ranker
    from clients.recommender import Recommender
    from genrec.progress import counting
    from training.data import Histories

    whole = Histories.load(a.artifact / "histories.parquet", times=True).sample(a.users, a.seed)
    users, answers = whole.cut(1), []
    with (
        Recommender(a.url, a.protocol) as recommender,
        Ranker(a.url, a.protocol) as ranker,
        Cascade(ranker, recommended_by(recommender, a.retrieve), cascade_ms=a.cascade_ms) as cascade,
    ):
        histories = users.rows()
        reads = whole.times is not None and reads_times(
            partial(ranker.rank, histories[0], histories[0][:1], 1)
        )
        known = known_of(whole) if reads else [{}] * len(users)
        asked = zip(users.user_ids.tolist(), histories, known, strict=True)
        with counting("cascade", len(users), "user") as bar:
            for user, history, events in asked:
                answers.append(cascade.ask(history, user, a.top_k, **events))
                bar.update()
    print("\n".join(lines(answers)))


def known_of(whole: Histories) -> list[dict[str, Any]]:
    """Of every user the times of all items but the newest, and as `now` the time of that one, which is asked for."""
    import numpy as np

    assert whole.times is not None
    cuts = np.split(whole.times, whole.offsets[1:-1])
    return [{"times": times[:-1], "now": int(times[-1])} for times in cuts]


def lines(answers: Sequence[CascadeAnswer]) -> list[str]:
    """Median and P99 of every stage and of all, what became of pre-inference, and whose prefix was there."""
    import numpy as np

    from perf.kit.report import columns

    times = defaultdict(list)
    for answer in answers:
        for stage, ms in (answer.ms | {"all": answer.total_ms}).items():
            times[stage].append(ms)
    rows = [
        [stage, f"{np.median(ms):.2f}", f"{np.quantile(ms, 0.99, method='higher'):.2f}", len(ms)]
        for stage, ms in times.items()
    ]
    outcomes = Counter(
        a.pre_inference.outcome if a.pre_inference else f"failed: {a.problem}" for a in answers
    )
    there = sum(answer.ranking.user_reused > 0 for answer in answers)
    return [
        columns(["stage", "median ms", "P99 ms", "measured"], rows),
        "",
        columns(["pre-inference", "users"], outcomes.most_common()),
        f"\n{there} of {len(answers)} rankings found KV of their user",
    ]
