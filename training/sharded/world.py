"""The processes that train together, as `torch.distributed` connects them by gloo, on CPUs; or one, on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import TypeVar

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from genrec.errors import GenrecError
from training.embedding.arrays import Int64

PATIENCE_S = 45  # a rank that says nothing for so long is given up
LEADS_S = 7200  # that one rank may take for what it makes, fetches or writes while others wait
T = TypeVar("T")


class RankLost(GenrecError):
    """Another rank of the training died or no longer answers."""


def join(rank: int, ranks: int, meeting: str) -> World:
    """Meet the other ranks at `meeting`, "tcp://127.0.0.1:29500" or "file:///path"; `torchrun` says "env://".

    Raises RankLost.
    """
    wait = timedelta(seconds=PATIENCE_S)
    _ask(rank, lambda: dist.init_process_group("gloo", meeting, timeout=wait, rank=rank, world_size=ranks))
    # A group's timeout is that of its connections, whatever a call says: whoever waits longer has others.
    patient = _ask(rank, lambda: dist.new_group(timeout=timedelta(seconds=LEADS_S)))
    return World(dist.group.WORLD, patient)


class World:
    """What ranks do together. Every method is called by all of them, in the same order. Raises RankLost.

    Without a group it is one process alone.
    """

    def __init__(
        self, group: dist.ProcessGroup | None = None, patient: dist.ProcessGroup | None = None, device: str = "cpu"
    ) -> None:  # fmt: skip
        """`patient`: the same ranks, for what one does alone while others wait. `device` is where models compute."""
        self.group, self._patient, self.device = group, patient, torch.device(device)
        self.rank = group.rank() if group else 0
        self.ranks = group.size() if group else 1

    def seed_dropout(self, seed: int) -> None:
        """Dropout is drawn by `seed` from here on, and differs between ranks."""
        torch.manual_seed(seed * 65_537 + self.rank)

    def random_state(self) -> dict[str, torch.Tensor]:
        """What dropout is drawn from, uint8[n] by device; a GPU has a state of its own."""
        states = {"torch": torch.get_rng_state()}
        if self.device.type == "cuda":
            states["cuda"] = torch.cuda.get_rng_state(self.device)
        return states

    def take_random_state(self, states: Mapping[str, torch.Tensor]) -> bool:
        """Go on from what `random_state` gave; False where these are not of such a device."""
        if states.keys() != self.random_state().keys():
            return False
        torch.set_rng_state(states["torch"])
        if "cuda" in states:
            torch.cuda.set_rng_state(states["cuda"], self.device)
        return True

    def swap(self, values: NDArray, sent: Int64, received: Int64) -> NDArray:
        """Rows of [sum(sent), ...] to their ranks, in the order of ranks; what came, [sum(received), ...]."""
        if not self.group:
            return values
        given = torch.from_numpy(values)
        came = torch.empty((int(received.sum()), *values.shape[1:]), dtype=given.dtype)
        _ask(
            self.rank,
            lambda: dist.all_to_all_single(came, given, received.tolist(), sent.tolist(), group=self.group),
        )
        return came.numpy()

    def swap_counts(self, sent: Int64) -> Int64:
        """How much each rank will send here, of what each will send, int64[ranks]."""
        ones = np.ones(self.ranks, np.int64)
        return self.swap(sent, ones, ones)

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """The sum over ranks, in place."""
        if self.group:
            _ask(self.rank, lambda: dist.all_reduce(values, group=self.group))
        return values

    def gather(self, numbers: NDArray) -> NDArray:
        """The same few numbers of every rank: [k] -> [ranks, k]."""
        ones = np.ones(self.ranks, np.int64)
        return self.swap(np.repeat(numbers[None], self.ranks, 0), ones, ones)

    def gather_rows(self, values: NDArray) -> NDArray:
        """Rows [n, ...] of every rank, each with an n of its own, in the order of ranks.

        What they were made by may take some ranks longer than others, as with `meet`.
        """
        self.meet()
        counts = self.gather(np.array([len(values)], np.int64))[:, 0]
        sent = np.full(self.ranks, len(values), np.int64)
        return self.swap(np.concatenate([values] * self.ranks), sent, counts)

    def meet(self) -> None:
        """Go on when everyone has come here; what some do alone before, as writing to a slow disk, may take LEADS_S."""
        if self._patient:
            _ask(self.rank, lambda: dist.barrier(group=self._patient))

    @contextmanager
    def lead_first(self) -> Iterator[None]:
        """Rank 0 goes first, then all others: what it leaves behind need not be made again."""
        if self.rank:
            self.meet()
        yield
        if self.rank == 0:
            self.meet()

    def leave(self) -> None:
        """Go, after everyone has come here."""
        if self.group:
            self.meet()
            dist.destroy_process_group(self.group)


def _ask(rank: int, work: Callable[[], T]) -> T:
    try:
        return work()
    except RuntimeError as error:  # what torch raises for a closed connection and for one that waits too long
        said = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise RankLost(f"rank {rank}: another rank died or does not answer: {said}") from error
