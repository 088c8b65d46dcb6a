"""Ours: a tritonserver on the artifact, asked over gRPC, one client per request in flight."""

from __future__ import annotations

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clients.recommender import Recommender
from deploy.launcher import RunningServer, running_server
from genrec.errors import GenrecError
from perf.kit import endpoints
from perf.kit.counters import PROBE_EVERY_S, Triton, spent
from perf.peers.folder import PeerModel
from perf.peers.process_memory import Peak
from perf.peers.refusal import Refusal
from perf.peers.system import Prompts, Turn

NAME, BEST, DRAFT = "genrec-triton", "genrec-triton best 10", "genrec-triton draft"


class Way(NamedTuple):
    """An ensemble, and how many of the beams are asked for."""

    ensemble: str
    top_k: int


OURS = {
    NAME: Way("recommend", sys.maxsize),
    BEST: Way("recommend", 10),
    DRAFT: Way("recommend_draft", sys.maxsize),
}
SLOTS_PER_REQUEST = 2  # a request may still hold its slot when the next one of the same client comes
STAGED = "recommend_staged"  # of which Triton sees every pass
PHASES = {"prefill": ("prefill",), "decode": ("decode",)}


class Ours:
    """See `perf.peers.system.System`. One server per beam width; of beam search one beside it whose passes Triton sees.

    BEST asks for the best 10 items that this beam search finds, so that fewer beams need be scored
    (`genrec.search.bound`). DRAFT is no beam search over the generator as the peers do: the draft head answers
    (NEZHA).
    """

    def __init__(self, model: PeerModel, threads: int, clients: int, name: str = NAME) -> None:
        self.name, self._model, self._threads, self._clients = name, model, threads, clients
        self._ensemble, self._top_k = OURS[name]
        self._stack, self._width = ExitStack(), 0
        self._staged: Triton | None = None
        self._server: RunningServer | None = None

    def start(self, width: int) -> None:
        """A server of this beam width."""
        if self._server and self._width == width:
            return
        self.stop()
        try:
            self._server = self._serve(width, self._ensemble)
            if self.name == NAME:
                staged = self._serve(width, STAGED)
                self._staged = Triton(endpoints.Endpoint(staged.grpc_url, staged.grpc_headers, STAGED))
                self._stack.callback(self._staged.close)
        except GenrecError as error:
            raise Refusal(str(error)) from error
        self._width = width
        self._recommenders = [
            self._stack.enter_context(Recommender(self._server.grpc_url, model=self._ensemble))
            for _ in range(self._clients)
        ]

    def _serve(self, width: int, ensemble: str) -> RunningServer:
        return self._stack.enter_context(
            running_server(
                self._model.artifact, beam_width=width, threads=self._threads, ensembles=(ensemble,),
                arena_slots=SLOTS_PER_REQUEST * self._clients, probe_every_s=PROBE_EVERY_S,
            )
        )  # fmt: skip

    def turn(self, prompts: Prompts, width: int, concurrency: int, limit_s: float) -> Turn:
        """Each of `concurrency` clients sends its next request when the last was answered."""
        clients = [
            (client, self._model.catalogue.item_ids[prompts.rows[number::concurrency]])
            for number, client in enumerate(islice(self._recommenders, concurrency))
        ]
        end, begun = time.monotonic() + limit_s, time.perf_counter()

        def send(mine: tuple[Recommender, NDArray[np.int64]]) -> list[tuple[float, NDArray[np.int64]]]:
            client, histories = mine
            done = []
            for history in histories:
                sent = time.perf_counter()
                answer = client.recommend(history, min(width, self._top_k))
                done.append((time.perf_counter() - sent, answer.item_ids))
                if time.monotonic() > end:
                    raise Refusal(f"> {limit_s:g} s", limit=True)
            return done

        try:
            with ThreadPoolExecutor(concurrency) as pool:
                done = [one for each in pool.map(send, clients) for one in each]
        except Refusal:
            raise
        except GenrecError as error:
            raise Refusal(str(error)) from error
        wall = time.perf_counter() - begun
        compute = (
            self._compute(self._model.catalogue.item_ids[prompts.rows[0]], width) if concurrency == 1 else {}
        )
        answers = [self._model.catalogue.rows_of(items) for _, items in done]
        return Turn([seconds for seconds, _ in done], wall, answers, compute)

    def _compute(self, history: NDArray[np.int64], width: int) -> dict[str, float]:
        """Seconds that Triton counts for each phase of one request, with a model for every pass; not timed itself.

        A request before it is not counted: those that are timed come one after the other too.
        """
        if not self._staged:
            return {}
        cold = self._staged.statistics()
        self._staged.recommender.recommend(history, width)
        before = self._staged.settled(cold, 1)
        self._staged.recommender.recommend(history, width)
        counted = spent(before, self._staged.settled(before, 1))
        return {
            phase: sum(counted[model]["infer"] for model in models) / 1e9 for phase, models in PHASES.items()
        }

    def scored(self, history: NDArray[np.int64], count: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Catalogue rows of the `count` best items after a history of rows, and their scores."""
        catalogue = self._model.catalogue
        answer = self._recommenders[0].recommend(catalogue.item_ids[history], count)
        return catalogue.rows_of(answer.item_ids), answer.scores

    def peak_bytes(self, prompts: Prompts, width: int) -> int:
        """Looked at while all clients ask: nothing is timed then."""
        if not self._server:
            return 0
        with Peak(self._server.pid, self._server.supervisor.prefix) as peak:
            self.turn(prompts, width, self._clients, 600.0)
        return peak.bytes

    def stop(self) -> None:
        """End the server, if any."""
        self._stack.close()
        self._server, self._staged, self._width = None, None, 0
