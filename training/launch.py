"""The same work on several ranks: in processes started here, in those that torchrun started, or in this one."""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import torch
from tqdm import tqdm

from genrec.cores import usable_cores
from genrec.errors import GenrecError, InputError
from genrec.process import end_with_command, end_with_parent, start_forkserver
from genrec.progress import hide
from training.sharded.world import RankLost, World, join

GRACE_S = 5.0  # after a rank failed, for the others to say what they know
START = multiprocessing.get_context("forkserver")  # torch is imported once, for all ranks
NO_MEMORY = ("can't allocate memory", "CUDA out of memory")  # torch has no type of its own for the first
TOLD, DIED, LOST = range(3)  # of failures, those that say most come first


def torchrun_rank() -> int | None:
    """The rank of this process where torchrun started it."""
    return int(os.environ["RANK"]) if "TORCHELASTIC_RUN_ID" in os.environ else None


def use_threads(threads: int) -> None:
    """Of torch in this process; 0 is a thread per core."""
    torch.set_num_threads(threads or min(torch.get_num_threads(), usable_cores()))


def on_ranks(
    ranks: int, work: Callable[..., Any], *arguments: Any, threads: int = 0, device: str = "cpu"
) -> Any:
    """What `work(world, *arguments)` gave on rank 0, or in this process where torchrun started it.

    It is made of plain values and NumPy arrays: tensors are shared memory of a process that is gone. `threads` are
    those of all ranks here together; 0 is a thread per core. `device` is where a process alone computes. A rank that
    fails ends the others. Raises RankLost, and what a rank raised; MemoryError for what torch has no memory for.
    """
    rank = torchrun_rank()
    if rank is not None:
        with _memory():
            return _in_torchrun(rank, ranks, work, arguments, threads)
    if ranks == 1:
        use_threads(threads)
        with _memory():
            return work(World(device=device), *arguments)
    each = max((threads or usable_cores()) // ranks, 1)
    start_forkserver(["torch", "torch.distributed", "torch._dynamo", work.__module__])
    with tempfile.TemporaryDirectory() as folder:
        members = []
        try:
            for number in range(ranks):
                members.append(_start(number, ranks, f"file://{folder}/meet", each, work, arguments))
            return _answers(members)[0]
        finally:
            for process, _ in members:
                process.kill()
                process.join()


@contextmanager
def _memory() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        if any(said in str(error) for said in NO_MEMORY):
            raise MemoryError(str(error).splitlines()[0]) from error
        raise


def _in_torchrun(rank: int, ranks: int, work: Callable[..., Any], arguments: Any, threads: int) -> Any:
    started, here = int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_WORLD_SIZE"])
    if ranks not in (1, started):
        raise InputError("ranks", f"is {ranks}, in one of the {started} that torchrun started", f"{started}")
    end_with_parent()  # torchrun that is killed leaves them, and another start is told that somebody is at it
    torch.set_num_threads(max((threads or usable_cores()) // here, 1))
    if rank:
        hide()
    world = join(rank, started, "env://")
    found = work(world, *arguments)
    world.leave()
    return found


def _start(
    rank: int, ranks: int, meeting: str, threads: int, work: Callable[..., Any], arguments: Any
) -> tuple[BaseProcess, Connection]:
    mine, theirs = START.Pipe(duplex=False)
    process = START.Process(target=_run, args=(rank, ranks, meeting, threads, theirs, work, arguments))
    try:
        process.start()
    except (EOFError, ConnectionError) as error:
        problem = "the process that forks it died, as where memory runs out"
        raise RankLost(f"rank {rank} of the training could not be started: {problem}") from error
    theirs.close()
    return process, mine


def _answers(members: list[tuple[BaseProcess, Connection]]) -> dict[int, Any]:
    """What every rank gave. Raises the most telling of what ranks failed of."""
    waiting = {pipe: rank for rank, (_, pipe) in enumerate(members)}
    found: dict[int, Any] = {}
    failed: list[tuple[int, Exception]] = []
    end: float | None = None
    while waiting and (ready := wait(waiting, None if end is None else max(end - time.monotonic(), 0))):
        for pipe in ready:
            rank = waiting.pop(pipe)  # type: ignore[arg-type]  # these are connections all
            try:
                failure, value = pipe.recv()  # type: ignore[union-attr]
            except EOFError:
                failure, value = DIED, RankLost(_obituary(rank, members[rank][0]))
            if failure is None:
                found[rank] = value
                continue
            failed.append((failure, value))
            end = end or time.monotonic() + GRACE_S
    if failed:
        raise min(failed, key=lambda each: each[0])[1]
    return found


def _obituary(rank: int, process: BaseProcess) -> str:
    process.join(GRACE_S)
    code = process.exitcode or 0
    how = f"of signal {-code} ({signal.Signals(-code).name})" if code < 0 else f"with code {code}"
    if -code == signal.SIGKILL:
        how += ", which the system sends where memory runs out"
    return f"rank {rank} of the training died {how}; the other ranks were ended"


def _run(
    rank: int,
    ranks: int,
    meeting: str,
    threads: int,
    pipe: Connection,
    work: Callable[..., Any],
    arguments: Any,
) -> None:
    """One rank; what it gave or raised goes through `pipe`."""
    end_with_parent()
    end_with_command()  # its parent is a server of forks, which lives on where the command itself is killed
    tqdm.set_lock(threading.RLock())  # its own is a semaphore of the system, which our end would leave behind
    torch.set_num_threads(threads)
    if rank:
        hide()
    try:
        world = join(rank, ranks, meeting)
        with _memory():
            found = work(world, *arguments)
        world.leave()
        pipe.send((None, found))
    except RankLost as error:
        pipe.send((LOST, error))
    except (GenrecError, OSError, MemoryError) as error:  # a full disk is told as it is of one rank
        pipe.send((TOLD, error))
    except Exception as error:
        traceback.print_exc()
        pipe.send((TOLD, GenrecError(f"rank {rank} failed: {type(error).__name__}: {error}")))
    pipe.close()
    os._exit(0)  # threads of gloo now and then abort at an orderly end
