"""Rollouts under load: is a request lost, does an answer mix two artifacts, does one come from the wrong one.

    genrec bench rollout [artifacts/ml-100k] [artifacts/other] [--requests 2000] [--rate 20]

Open loop over gRPC against a router and servers of its own, while users move there by half, back, there, and back for
good. Both artifacts are left alone: what is served as the new one is a folder of links to it whose items have other
numbers. A request names the items of its history in both numberings, and an artifact drops those that it does not know;
so the numbers of an answer say which artifact it is from, whatever the generators answer.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from clients.aio import AsyncRecommender
from clients.wire import Recommendation
from deploy.ports import choose_ports
from deploy.router.fleet import Fleet, running_fleet
from deploy.router.limits import Limits
from genrec import manifest
from genrec.catalogue.files import CATALOGUE
from genrec.catalogue.items import Catalogue
from genrec.catalogue.versions import FOLDER, folder_of, read_current
from perf.kit import report, traffic, turns, worth
from perf.slo.replay import WARM_UP, ReplayedRequest, replay, summarise

OLD, NEW, MIXED = "old", "new", "mixed"
USERS = 1000
# To which artifact, with which share of the users, and who may answer once that is done.
MOVES = ((NEW, 50, None), (NEW, 0, OLD), (NEW, 100, NEW), (OLD, 100, OLD))
# As much as a queue of Triton would take: this asks whether a rollout loses anything, not what the router sheds.
LIMITS = Limits(in_flight=64, waiting=256, wait_ms=10_000)


class RolloutChecker:
    """Sends for one user after the other, and says by the numbers of its items whose each answer is.

    `mixed` counts answers with items of both artifacts, `stale` those of the wrong one to requests that were sent after
    a move had ended and answered before another began.
    """

    def __init__(self, client: AsyncRecommender, offset: int) -> None:
        self._client, self._offset, self._sent = client, offset, 0
        self.whose: Counter[str] = Counter()
        self.answers: list[tuple[str, Recommendation]] = []
        self.stale = self.moves = 0
        self.settled: str | None = OLD  # None while users move, or both answer

    async def recommend(
        self, history: ArrayLike, top_k: int = 10, *, deadline_ms: int | None = None
    ) -> Recommendation:
        """See `AsyncRecommender.recommend`."""
        settled, moves, self._sent = self.settled, self.moves, self._sent + 1
        items = np.asarray(history)
        both = np.concatenate([items, items + self._offset])
        user = self._sent % USERS
        answer = await self._client.recommend(both, top_k, user_id=user, deadline_ms=deadline_ms)
        new = answer.item_ids >= self._offset
        whose = NEW if new.all() else MIXED if new.any() else OLD
        self.whose[whose] += 1
        self.answers.append((whose, answer))
        self.stale += settled is not None and moves == self.moves and whose != settled
        return answer


def renumbered(artifact: Path, folder: Path, offset: int) -> Path:
    """A folder that looks like the artifact, in which every item has its number plus `offset`."""
    for path in artifact.resolve().iterdir():
        if path.name not in (FOLDER, CATALOGUE, manifest.NAME):
            (folder / path.name).symlink_to(path)
    items = Catalogue.load(artifact / CATALOGUE)
    other = Catalogue(
        items.item_ids + offset, items.codes, items.titles, items.popularity, items.codebook_sizes
    )
    other.save(folder / CATALOGUE)
    about, made = manifest.read(artifact), manifest.digest_file(folder / CATALOGUE)
    for stage in about.values():
        stage["outputs"] |= {CATALOGUE: made} if CATALOGUE in stage["outputs"] else {}
    (folder / manifest.NAME).write_text(json.dumps(about))
    return folder


async def _moves(
    fleet: Fleet, folders: dict[str, Path], checker: RolloutChecker, every_s: float
) -> list[float]:
    """All MOVES, `every_s` between two of them; the seconds each took."""
    taken = []
    with ThreadPoolExecutor(1) as elsewhere:
        for to, share, then in MOVES:
            await asyncio.sleep(every_s)
            checker.settled, checker.moves = None, checker.moves + 1
            begun = time.perf_counter()
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(elsewhere, fleet.move, folders[to], share)
            taken.append(time.perf_counter() - begun)
            checker.settled = then
    return taken


async def _drive(
    fleet: Fleet, folders: dict[str, Path], offset: int, histories: traffic.Histories, a: argparse.Namespace
) -> tuple[RolloutChecker, list[ReplayedRequest], list[float]]:
    """The checker, what became of every request, and the time of each move; the load lasts as long as both."""
    async with AsyncRecommender(fleet.router.ports.grpc_url) as client:
        checker = RolloutChecker(client, offset)
        for number in range(WARM_UP):
            await checker.recommend(histories[number % len(histories)], a.top_k)
        checker.whose.clear()
        checker.answers.clear()
        moves = asyncio.create_task(_moves(fleet, folders, checker, a.requests / a.rate / (2 * len(MOVES))))
        events: list[ReplayedRequest] = []
        seed = a.seed
        while not moves.done() or not events:
            seed += 1
            arrivals = traffic.poisson(a.rate, a.requests if not events else max(int(a.rate), 1), seed)
            events += await replay(checker, histories, arrivals, top_k=a.top_k)
        return checker, events, await moves


def worth_of(checker: RolloutChecker, folders: dict[str, Path], top_k: int) -> worth.Worth:
    """What the answers are worth, each held against its own artifact; a mixed one against the old."""
    catalogues = {
        whose: Catalogue.load(folder_of(folder, read_current(folder).version) / CATALOGUE, titles=False)
        for whose, folder in folders.items()
    }
    return worth.worth(
        [(answer, catalogues.get(whose, catalogues[OLD])) for whose, answer in checker.answers], top_k
    )


def figures_of(checker: RolloutChecker, events: list[ReplayedRequest], taken: list[float]) -> dict[str, Any]:
    """What is printed."""
    whole = summarise(events, None)
    return {
        "requests": whole.requests,
        "failed": whole.failed,
        "shed": whole.shed,
        "mixed_versions": checker.whose[MIXED],
        "stale_versions": checker.stale,
        "answers_of": dict(sorted(checker.whose.items())),
        "moves": len(taken),
        "move_s_max": round(max(taken), 2),
        "p50_ms": whole.p50_ms,
        "p99_ms": whole.p99_ms,
        "problems": whole.problems,
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Print a table for people and one JSON object as the last line."""
    parser = report.arguments("rollout", __doc__)
    report.add_artifact(parser)
    parser.add_argument(
        "new", type=Path, nargs="?", help="the artifact to go to; default: the same, renumbered"
    )
    parser.add_argument("--servers", type=int, default=1, help="of each artifact")
    parser.add_argument("--requests", type=int, default=2000, help="at least; more while the moves last")
    report.add_options(parser, rate=20.0, beam_width=128, top_k=10, seed=0)
    a = parser.parse_args(argv)
    run = report.begin(a)
    offset = 1 + int(Catalogue.load(a.artifact / CATALOGUE, titles=False).item_ids.max())
    with tempfile.TemporaryDirectory(prefix="genrec-rollout-") as folder:
        folders = {OLD: a.artifact.resolve(), NEW: renumbered(a.new or a.artifact, Path(folder), offset)}
        histories = traffic.histories(a.artifact, USERS, a.seed)
        with running_fleet(
            folders[OLD], a.servers, LIMITS, choose_ports(), beam_width=a.beam_width, ensembles=("recommend",)
        ) as fleet:
            checker, events, taken = asyncio.run(_drive(fleet, folders, offset, histories, a))
        checked = worth_of(checker, folders, a.top_k)
    figures = figures_of(checker, events, taken)
    figures = {k: round(v, 2) if isinstance(v, float) else v for k, v in figures.items()}
    report.show(figures)
    print(worth.line(checked))
    run.publish({**figures, **checked._asdict()}, repeats=1, spread={"move_s": turns.extremes(taken)[1:]})


if __name__ == "__main__":
    main()
