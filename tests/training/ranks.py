"""Run a function on several ranks over gloo, as processes of their own that begin with everything imported."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from training.sharded.world import join

LIMIT_S = 120.0
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
