"""Catalogue swaps under load: is a request lost, does an answer mix two versions, what does it cost the others.

    genrec bench swap [artifacts/ml-100k] [--seconds 60] [--rate 20]

Open loop against a server of its own, over `recommend` and, with a draft head, `recommend_draft`; stretches without
and with swaps take turns. The artifact is left alone: versions are made in a folder of links to it. Swaps run in a
process of their own, as `genrec catalogue swap` does, on the server's cores.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import multiprocessing
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from build.catalogue import add_items, remove_items
from clients.aio import AsyncRecommender
from clients.wire import Recommendation
from deploy import switch
from deploy.launcher import running_server
from genrec.catalogue.files import CATALOGUE
from genrec.catalogue.items import Catalogue
from genrec.catalogue.versions import FOLDER, folder_of, versions_of
from genrec.draft.options import has_draft
from perf.kit import report, traffic, turns, worth
from perf.slo.replay import WARM_UP, ReplayedRequest, replay, summarise

SHARE = 10  # every tenth item goes, or comes
# A version to switch to, or None to roll back; a cycle ends where it began.
MOVES = (2, 3, None, 4, None, None)


class Checker:
    """Sends in turn to every client and holds each answer against the items of the version it reports.

    `mixed` counts answers with an item that is not of it, `stale` those to a request sent after a swap had ended,
    and answered before another began, that report another version.
    """

    def __init__(self, clients: Sequence[AsyncRecommender], items: dict[int, set[int]]) -> None:
        self._clients, self._items = itertools.cycle(clients), items
        self.versions: Counter[int] = Counter()
        self.answers: list[Recommendation] = []
        self.mixed = self.stale = self.moves = 0
        self.settled: int | None = 1  # None while a swap is going on

    async def recommend(
        self, history: ArrayLike, top_k: int = 10, *, deadline_ms: int | None = None
    ) -> Recommendation:
        """See `AsyncRecommender.recommend`."""
        settled, moves = self.settled, self.moves
        answer = await next(self._clients).recommend(history, top_k, deadline_ms=deadline_ms)
        self.answers.append(answer)
        version = answer.catalogue_version
        self.versions[version] += 1
        self.mixed += not set(answer.item_ids.tolist()) <= self._items.get(version, set())
        self.stale += settled is not None and moves == self.moves and version != settled
        return answer


def linked(artifact: Path, folder: Path) -> Path:
    """A folder that looks like the artifact, with versions of its own."""
    for path in artifact.resolve().iterdir():
        if path.name != FOLDER:
            (folder / path.name).symlink_to(path)
    return folder


def make_versions(artifact: Path, seed: int) -> dict[int, set[int]]:
    """Three more versions, each unlike the others in a tenth of its items or more; the items of all four."""
    draw = np.random.default_rng(seed)
    base = Catalogue.load(artifact / CATALOGUE, titles=False)
    gone = draw.permutation(base.item_ids)[: 2 * max(len(base) // SHARE, 1)].reshape(2, -1)
    remove_items(artifact, gone[0], base=1)
    codes = draw.permutation(base.codes)[: gone.shape[1]]
    codes[:, -1] = draw.integers(0, base.codebook_sizes[-1], len(codes))
    with tempfile.NamedTemporaryFile("w", suffix=".csv") as file:
        file.write(",".join(["item", "title", *(f"code_{n}" for n in range(1, base.levels + 1))]) + "\n")
        for item, code in zip(itertools.count(int(base.item_ids.max()) + 1), codes.tolist(), strict=False):
            file.write(",".join(map(str, [item, "new", *code])) + "\n")
        file.flush()
        add_items(artifact, Path(file.name))
    remove_items(artifact, gone[1])
    return {
        version: set(Catalogue.load(folder_of(artifact, version) / CATALOGUE, titles=False).item_ids.tolist())
        for version in versions_of(artifact)
    }


async def _cycle(artifact: Path, checker: Checker, elsewhere: Executor, every_s: float) -> list[float]:
    """All MOVES, `every_s` after each other; the seconds each took."""
    taken = []
    for move in MOVES:
        await asyncio.sleep(every_s)
        checker.settled, checker.moves = None, checker.moves + 1
        begun = time.perf_counter()
        work = (switch.roll_back, artifact) if move is None else (switch.switch, artifact, move)
        now = await asyncio.get_running_loop().run_in_executor(elsewhere, *work)
        taken.append(time.perf_counter() - begun)
        checker.settled = now.version
    return taken


async def _drive(
    url: str,
    artifact: Path,
    items: dict[int, set[int]],
    histories: traffic.Histories,
    seconds: float,
    a: argparse.Namespace,
) -> tuple[Checker, list[ReplayedRequest], list[ReplayedRequest], list[float]]:
    """Stretches of `seconds` without and with swaps: the checker, the events of both kinds, the time of each move."""
    models = ("recommend", "recommend_draft") if has_draft(artifact) else ("recommend",)
    # Both stretches of a round have the same
    arrivals = [traffic.poisson(a.rate, max(int(a.rate * seconds), 1), a.seed + n) for n in range(a.rounds)]
    calm, moving, taken = [], [], []
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(AsyncRecommender(url, model=m)) for m in models]
        checker = Checker(clients, items)
        elsewhere = stack.enter_context(ProcessPoolExecutor(1, multiprocessing.get_context("spawn")))
        for number in range(WARM_UP):
            await checker.recommend(histories[number % len(histories)], a.top_k)
        checker.versions.clear()
        checker.answers.clear()
        for number, swapping in turns.interleaved((False, True), a.rounds):
            sent = replay(checker, histories, arrivals[number], top_k=a.top_k)
            if not swapping:
                calm += await sent
                continue
            cycle = _cycle(artifact, checker, elsewhere, seconds / len(MOVES))
            events, moves = await asyncio.gather(sent, cycle)
            moving += events
            taken += moves
    return checker, calm, moving, taken


def figures_of(
    checker: Checker, calm: list[ReplayedRequest], moving: list[ReplayedRequest], taken: list[float]
) -> dict[str, Any]:
    """What is printed."""
    whole, quiet, busy = summarise(calm + moving, None), summarise(calm, None), summarise(moving, None)
    return {
        "requests": whole.requests,
        "failed": whole.failed,
        "shed": whole.shed,
        "mixed_versions": checker.mixed,
        "stale_versions": checker.stale,
        "swaps": len(taken),
        "answers_of_version": dict(sorted(checker.versions.items())),
        "swap_s_median": float(np.median(taken)),
        "swap_s_max": max(taken),
        "p50_ms_without_swaps": quiet.p50_ms,
        "p50_ms_with_swaps": busy.p50_ms,
        "p99_ms_without_swaps": quiet.p99_ms,
        "p99_ms_with_swaps": busy.p99_ms,
        "problems": whole.problems,
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Print a table for people and one JSON object as the last line."""
    parser = report.arguments("swap", __doc__)
    report.add_artifact(parser)
    parser.add_argument("--seconds", type=float, default=60.0, help="of load, half of it without swaps")
    report.add_options(parser, rounds=2, rate=20.0, beam_width=128, top_k=10, seed=0)
    a = parser.parse_args(argv)
    run = report.begin(a)
    with tempfile.TemporaryDirectory(prefix="genrec-swap-") as folder:
        artifact = linked(a.artifact, Path(folder))
        items, histories = make_versions(artifact, a.seed), traffic.histories(artifact, 1000, a.seed)
        with running_server(artifact, beam_width=a.beam_width) as server:
            stretch = a.seconds / (2 * a.rounds)
            found = asyncio.run(_drive(server.grpc_url, artifact, items, histories, stretch, a))
            restarts = server.restarts
        checked = worth.worth_of(artifact, found[0].answers, a.top_k)
    figures = {**figures_of(*found), "restarts": restarts, "items": len(items[1])}
    figures = {k: round(v, 3) if isinstance(v, float) else v for k, v in figures.items()}
    report.show(figures)
    print(worth.line(checked))
    run.publish(
        {**figures, **checked._asdict()}, repeats=a.rounds, spread={"swap_s": turns.extremes(found[-1])[1:]}
    )


if __name__ == "__main__":
    main()
