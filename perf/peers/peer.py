"""A peer: its worker in its own environment and process, asked over pipes, frozen while it is not asked."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from deploy import tritonserver
from perf.peers import process_memory
from perf.peers.refusal import Refusal, last_line
from perf.peers.system import Prompts, Turn

FOLDER = Path(__file__).parent
LOOP = FOLDER / "worker.py"
START_LIMIT_S = 300.0
LOOK_S = 0.5  # looking walks /proc, on the cores of the one that is looked at
GIB = 1 << 30
# Workers say themselves how many threads they take, and import what their own environment has.
UNSET = ("OMP_NUM_THREADS", "PYTHONPATH")
QUIET = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}  # nothing is fetched


@dataclass
class Worker:
    """How a peer is started. `options` go to its worker; more than `memory_limit` bytes resident ends it."""

    python: Path
    script: Path
    options: dict[str, Any]
    log: Path
    memory_limit: int


class Deadline:
    """A moment `seconds` from now, which remembers how many they were."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.end = seconds, time.monotonic() + seconds


class Peer:
    """See `perf.peers.system.System`."""

    def __init__(self, name: str, worker: Worker) -> None:
        self.name, self._worker = name, worker
        self._process: subprocess.Popen[bytes] | None = None
        self._unread, self._unfit = b"", ""

    def start(self, width: int) -> None:
        """Start the worker unless it lives; any beam width is the same to it. Raises Refusal."""
        if self._unfit:
            raise Refusal(self._unfit)
        if not self._process:
            try:
                self._start()
            except Refusal as error:  # starting takes long and ends the same: once is enough
                self._unfit = error.reason
                self.stop()
                raise
        assert self._process
        process_memory.forget_peaks(self._process.pid)

    def _start(self) -> None:
        w = self._worker
        w.log.parent.mkdir(parents=True, exist_ok=True)
        with w.log.open("wb") as log:
            self._process = subprocess.Popen(
                [str(w.python), "-u", str(LOOP), str(w.script), json.dumps(w.options)],
                env={name: value for name, value in os.environ.items() if name not in UNSET} | QUIET,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        self._unread = b""
        deadline = Deadline(START_LIMIT_S)
        with self._awake():
            self._answer(deadline)
        # What happens once only (threads, kernels compiled) belongs to no cell.
        self.ask(deadline, do="generate", prompts=[[0] * w.options["levels"]], width=2)

    def turn(self, prompts: Prompts, width: int, concurrency: int, limit_s: float) -> Turn:
        """Batches of `concurrency` prompts, one after the other; the worker's own clock counts. Raises Refusal."""
        deadline, seconds, answers = Deadline(limit_s), [], []
        for first in range(0, len(prompts.tokens), concurrency):
            batch = prompts.tokens[first : first + concurrency].tolist()
            found, taken = self.ask(deadline, do="generate", prompts=batch, width=width)
            seconds.append(taken)
            answers += [prompts.model.rows_of(answer) for answer in found]
        return Turn(seconds, sum(seconds), answers)

    def ask(self, deadline: Deadline, **request: Any) -> tuple[Any, float]:
        """One request to the worker: its result and seconds. Raises Refusal."""
        if not self._process:
            raise Refusal("has not started")
        with self._awake():
            try:
                assert self._process.stdin
                self._process.stdin.write((json.dumps(request) + "\n").encode())
                self._process.stdin.flush()
            except BrokenPipeError:
                raise self._died() from None
            answer = self._answer(deadline)
        return answer["result"], answer["seconds"]

    def peak_bytes(self, prompts: Prompts, width: int) -> int:
        """Peak resident memory of all its processes since `start`, as the kernel kept it."""
        return process_memory.resident(self._process.pid, "VmHWM") if self._process else 0

    def stop(self) -> None:
        """End its processes, if any, and remove what they shared."""
        if self._process:
            shared = process_memory.shared_files(self._process.pid)
            tritonserver.end(self._process, grace_s=0)
            for path in shared:
                path.unlink(missing_ok=True)
            for pipe in (self._process.stdin, self._process.stdout):
                with suppress(BrokenPipeError):  # what it never read
                    pipe.close()  # type: ignore[union-attr]
        self._process = None

    @contextmanager
    def _awake(self) -> Iterator[None]:
        """Thawed inside and frozen after, so that a peer that spins or polls takes nothing from the others."""
        assert self._process
        process_memory.signal_all(self._process.pid, signal.SIGCONT)
        try:
            yield
        finally:
            if self._process:
                process_memory.signal_all(self._process.pid, signal.SIGSTOP)

    def _answer(self, deadline: Deadline) -> dict[str, Any]:
        """The worker's next line. Raises Refusal; out of time or memory, the worker is ended."""
        assert self._process and self._process.stdout
        pipe = self._process.stdout.fileno()
        while b"\n" not in self._unread:
            if wait([pipe], LOOK_S):
                read = os.read(pipe, 1 << 20)
                if not read:
                    raise self._died()
                self._unread += read
            elif time.monotonic() > deadline.end:
                self.stop()
                raise Refusal(f"> {deadline.seconds:g} s", limit=True)
            elif process_memory.resident(self._process.pid) > self._worker.memory_limit:
                self.stop()
                raise Refusal(f"> {self._worker.memory_limit / GIB:.1f} GiB", limit=True)
        line, _, self._unread = self._unread.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise Refusal(last_line(answer["error"].partition("\n")[0]))
        return answer

    def _died(self) -> Refusal:
        """Why it is gone, by the last line of its log."""
        assert self._process
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        code = self._process.returncode
        self.stop()
        said = last_line(self._worker.log.read_text(errors="replace"))
        return Refusal(f"died ({code}): {said}")
