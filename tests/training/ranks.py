"""Run a function on several ranks: over gloo in processes of their own, or, for many, in threads of this one."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from training.sharded.world import World, join

LIMIT_S = 300.0
SLOW_S = 3
START = multiprocessing.get_context("forkserver")
START.set_forkserver_preload(["torch", "torch.distributed", "torch._dynamo", "training.sharded.step"])


class Failed(Exception):
    """A rank raised; the message has what."""


def on_ranks(
    ranks: int, work: Callable[..., Any], *arguments: Any, may_die: tuple[int, ...] = ()
) -> list[Any]:
    """What `work(world, *arguments)` gave on each rank; None for a rank of `may_die` that did. Raises Failed."""
    with tempfile.TemporaryDirectory() as folder:
        pipes, processes = [], []
        for rank in range(ranks):
            mine, theirs = START.Pipe(duplex=False)
            process = START.Process(
                target=_run, args=(rank, ranks, f"file://{folder}/meet", theirs, work, arguments)
            )
            process.start()
            theirs.close()
            pipes.append(mine)
            processes.append(process)
        try:
            return [_answer(rank, pipe, rank in may_die) for rank, pipe in enumerate(pipes)]
        finally:
            for process in processes:
                process.kill()
                process.join()


def _answer(rank: int, pipe: Connection, may_die: bool) -> Any:
    if not wait([pipe], LIMIT_S):
        raise Failed(f"rank {rank} has not answered within {LIMIT_S} s")
    try:
        kind, value = pipe.recv()
    except EOFError:
        if may_die:
            return None
        raise Failed(f"rank {rank} died") from None
    if kind == "raised":
        raise Failed(f"rank {rank}: {value}")
    return value


def _run(
    rank: int, ranks: int, meeting: str, pipe: Connection, work: Callable[..., Any], arguments: Any
) -> None:
    torch.set_num_threads(1)
    try:
        world = join(rank, ranks, meeting)
        pipe.send(("gave", work(world, *arguments)))
        world.leave()
    except Exception as error:
        pipe.send(("raised", f"{type(error).__name__}: {error}"))
    pipe.close()
    os._exit(0)  # threads of gloo now and then abort at an orderly end


class ThreadWorld(World):
    """Ranks as threads of one process; they share `board` and wait for each other at `barrier`."""

    def __init__(self, rank: int, ranks: int, board: list[Any], barrier: threading.Barrier) -> None:
        super().__init__()
        self.rank, self.ranks, self.board, self.barrier = rank, ranks, board, barrier

    def swap(self, values: np.ndarray, sent: np.ndarray, received: np.ndarray) -> np.ndarray:
        self.board[self.rank] = np.split(values, np.cumsum(sent)[:-1])
        self.barrier.wait()
        came = np.concatenate([parts[self.rank] for parts in self.board])
        self.barrier.wait()
        assert len(came) == received.sum()
        return came

    def meet(self) -> None:
        self.barrier.wait()


def impatient(world: World) -> World:
    """Give a rank up that says nothing for SLOW_S."""
    world.group = dist.new_group(timeout=timedelta(seconds=SLOW_S))
    return world


def in_threads(ranks: int, work: Callable[[World], Any]) -> list[Any]:
    board, barrier = [None] * ranks, threading.Barrier(ranks, timeout=60)

    def run(rank: int) -> Any:
        try:
            return work(ThreadWorld(rank, ranks, board, barrier))
        except BaseException:
            barrier.abort()
            raise

    with ThreadPoolExecutor(ranks) as pool:
        return list(pool.map(run, range(ranks)))
