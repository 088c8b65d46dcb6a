"""`genrec cascade`: a data set's users through pre-inference, retrieval and ranking, and where their time went."""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from cli.options import add_artifact, add_protocol, add_retrieve, add_top_k, at_least
from cli.rank import reads
from genrec.settings import MAX_DEADLINE_MS, MOST_VALUES

if TYPE_CHECKING:
    from clients.cascade import CascadeAnswer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options."""
    add_artifact(parser)
    parser.add_argument("--url", required=True, help="host:port of a server or of a router")
    add_protocol(parser)
    parser.add_argument("--users", type=at_least(1), default=200, help="a sample; default: %(default)s")
    add_retrieve(parser, "candidates of a user")
    add_top_k(parser)
    parser.add_argument(
        "--cascade-ms",
        type=at_least(1, MAX_DEADLINE_MS),
        default=135,
        help=f"from start to answer, 1 to {MAX_DEADLINE_MS}; default: 135",
    )
    parser.add_argument("--seed", type=at_least(0), default=0, help="of the sample")


def run(a: argparse.Namespace) -> None:
    """One user after the other; a table at the end."""
    from cli.show import known_of
    from clients.cascade import Cascade, recommended_by
    from clients.ranker import Ranker
    from clients.recommender import Recommender
    from genrec.progress import counting
    from training.data.histories import Histories

    users = Histories.load(a.artifact / "histories.parquet").sample(a.users, a.seed)
    users = users.newest(MOST_VALUES).cut(1)  # in this order: times are of as many
    answers = []
    with (
        Recommender(a.url, a.protocol) as recommender,
        Ranker(a.url, a.protocol) as ranker,
        Cascade(ranker, recommended_by(recommender, a.retrieve), cascade_ms=a.cascade_ms) as cascade,
    ):
        histories = users.rows()
        ask = partial(ranker.rank, histories[0], histories[0][:1], 1)
        told = [name for name in ("times", "ratings", "features") if reads(ask, name)]
        with counting("cascade", len(users), "user") as bar:
            for user, history in zip(users.user_ids.tolist(), histories, strict=True):
                events = before_newest(known_of(a.artifact, user), told)
                answers.append(cascade.ask(history, user, a.top_k, **events))
                bar.update()
    print("\n".join(lines(answers)))


def before_newest(known: dict[str, list[int]], told: Sequence[str]) -> dict[str, Any]:
    """What is `told` of a user: of all items but the newest, and as `now` the time of that one, which is asked for."""
    events: dict[str, Any] = {
        name: values if name == "features" else values[:-1]
        for name, values in known.items()
        if name in told and len(values)
    }
    return {**events, "now": known["times"][-1]} if "times" in events else events


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
