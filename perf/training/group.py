"""The ranks of one way to train, each a process; asked together, over the loop of `perf.peers.worker`."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from perf.peers import envs
from perf.peers.peer import LOOP
from perf.peers.refusal import Refusal, last_line

FOLDER = Path(__file__).parent / "workers"
LIMIT_S = 600.0


def add_options(parser: argparse.ArgumentParser) -> None:
    """What is trained on, and where peers are installed; `--quick` shows that everything runs, not how fast."""
    parser.add_argument("--quick", action="store_true", help="tiny sizes: that it runs, not how fast")
    parser.add_argument("--sequences", type=int, default=128, help="per rank and step")
    parser.add_argument("--vocabulary", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, default=Path("artifacts/peers"))
    parser.add_argument(
        "--no-install", dest="install", action="store_false", help="skip peers that are not there"
    )


def python_for(environment: str, root: Path, install: bool) -> Path:
    """The Python of a peer's environment, or ours where it is named ''. Raises Refusal."""
    if not environment:
        return Path(sys.executable)
    if install:
        return envs.install(root, environment)
    if not envs.is_installed(root, environment):
        raise Refusal(f"the environment {environment} is not installed")
    return envs.python_of(root, environment)


class RankGroup:
    """`ranks` processes that run one worker and meet each other in a file."""

    def __init__(self, python: Path, script: str, ranks: int, **options: Any) -> None:
        """Raises Refusal with the last line of what a worker said."""
        self._folder = tempfile.TemporaryDirectory()
        meeting = f"file://{self._folder.name}/meeting"
        self._logs = [Path(self._folder.name) / f"{rank}.log" for rank in range(ranks)]
        self._unread = [b""] * ranks
        path = os.pathsep.join(
            [str(FOLDER), *filter(None, sys.path)] if python == Path(sys.executable) else [str(FOLDER)]
        )
        self._processes = []
        for rank, log in enumerate(self._logs):
            asked = {**options, "rank": rank, "ranks": ranks, "meeting": meeting}
            with log.open("wb") as file:
                self._processes.append(
                    subprocess.Popen(
                        [str(python), "-u", str(LOOP), str(FOLDER / script), json.dumps(asked)],
                        env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file,
                    )
                )  # fmt: skip
        try:
            self._answers()
        except BaseException:  # who is interrupted leaves no ranks behind
            self.stop()
            raise

    def ask(self, **request: Any) -> list[Any]:
        """The same request to all ranks; what each gave. Raises Refusal."""
        for rank, process in enumerate(self._processes):
            assert process.stdin
            try:
                process.stdin.write((json.dumps(request) + "\n").encode())
                process.stdin.flush()
            except BrokenPipeError:
                raise self._died(rank) from None
        return self._answers()

    def stop(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.kill()
            process.communicate()
        self._folder.cleanup()

    def __enter__(self) -> RankGroup:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def _answers(self) -> list[Any]:
        end = time.monotonic() + LIMIT_S
        return [self._answer(rank, end) for rank in range(len(self._processes))]

    def _answer(self, rank: int, end: float) -> Any:
        pipe = self._processes[rank].stdout
        assert pipe
        while b"\n" not in self._unread[rank]:
            if not wait([pipe], max(end - time.monotonic(), 0)):
                raise Refusal(f"rank {rank}: > {LIMIT_S:g} s")
            read = os.read(pipe.fileno(), 1 << 20)
            if not read:
                raise self._died(rank)
            self._unread[rank] += read
        line, _, self._unread[rank] = self._unread[rank].partition(b"\n")
        answer = json.loads(line)
        if "error" in answer:
            raise Refusal(f"rank {rank}: {last_line(answer['error'])}")
        return answer["result"]

    def _died(self, rank: int) -> Refusal:
        """By the last line of its log."""
        return Refusal(f"rank {rank} died: {last_line(self._logs[rank].read_text(errors='replace'))}")
