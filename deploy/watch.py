"""Is anything wrong with a server? Its processes say whether they live or are stopped; probes, whether they answer.

Triton 2.51 does not admit to a dead stub (H3) and goes on saying that it is ready.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import NamedTuple

from deploy import probe, tritonserver
from deploy.launch import Launch, ServerLog
from genrec.catalogue import agreement
from genrec.errors import ArtifactError

# A model that answers later, from threads of its own, takes along what it was asked: nobody would ever answer that, and
# only a server that ends breaks its clients' connections. Of the others Triton itself says that they died.
ANSWERS_LATER = frozenset({"generate", "prefill_draft", "score_candidates"})
# What a client leaves out differs from request to request. Triton puts such requests into batches of their own, and
# gives back the queue of a dead process a batch a second: some were seen to wait for two minutes.
READS_REQUESTS = frozenset({"encode_history", "encode_candidates", "encode_prefix"})
STOPPED_S = 3.0  # that a process may be stopped, by someone who looks at it
PROBE_TIMEOUT_S = 5.0
METRICS_TIMEOUT_S = 1.0
FAILED_PROBES = 3  # in a row: one slow answer is no reason to throw away every request in flight
# The same of an ensemble that computes: a pass of a large model on few cores takes longer than all of three probes.
COMPUTING_PROBES = 20
HAVE_PASSES = ANSWERS_LATER | {"prefill", "decode"}
COMPUTES = 0.1  # of a core: so much a process has even where others want the cores; one that waits has less
LOOK = "the look itself"  # among the ensembles whose failed probes are counted


class Trouble(NamedTuple):
    """What is wrong, and the models that suffice to be loaded again; none: the whole server must be started again."""

    told: str
    models: frozenset[str] = frozenset()


class Watch:
    """One tritonserver with its stubs, from when it first answered."""

    def __init__(self, launch: Launch, session: int) -> None:
        self._launch, self._session, self._log = launch, session, ServerLog(launch.ports.http_url)
        self.models: dict[int, str] = {}  # of every stub, by pid
        self._stopped: dict[int, float] = {}  # since when
        self._failed: Counter[str] = Counter()
        self._answered: dict[str, int] = {}
        self._computed: tuple[float, dict[int, float]] = 0.0, {}  # when, and each stub's CPU time then
        self._item = launch.item()
        self.take_stock()

    def take_stock(self) -> None:
        """The stubs that live now are those that should."""
        self.models = {pid: tritonserver.model_of(pid) for pid in tritonserver.living_stubs(self._session)}
        for gone in self._stopped.keys() - {self._session, *self.models}:
            del self._stopped[gone]  # nobody looks at it again: `silence` would wait for it without end
        self._count_answers()

    def processes(self) -> Trouble | None:
        """A process that has died, or was stopped for long, or what they share is gone."""
        if tritonserver.state_of(self._session) in ("", "Z", "X"):
            return Trouble("tritonserver has died")
        if self._is_stopped(self._session):
            return Trouble(f"tritonserver was stopped {STOPPED_S:.0f} s ago")
        if not self._launch.swap.is_dir():  # it would follow no swap, and forget nobody's KV
            return Trouble(
                "its files in /dev/shm were removed (systemd-logind does that when a user logs out: RemoveIPC)"
            )
        lost = {}
        for pid, model in self.models.items():
            if tritonserver.state_of(pid) in ("", "Z", "X"):
                lost[pid] = f"{model} (process {pid}) has died"
            elif self._is_stopped(pid):
                lost[pid] = f"{model} (process {pid}) was stopped {STOPPED_S:.0f} s ago"
        if not lost:
            return None
        models = frozenset(self.models[pid] for pid in lost)
        return Trouble(
            "; ".join(lost.values()), frozenset() if models & (ANSWERS_LATER | READS_REQUESTS) else models
        )

    def forget_dead(self) -> None:
        """No swap of the catalogue waits for processes that have died and that nobody takes the place of yet."""
        for pid in self.models:
            if tritonserver.state_of(pid) in ("", "Z", "X"):
                agreement.forget(self._launch.swap, pid)

    def _is_stopped(self, pid: int) -> bool:
        if tritonserver.state_of(pid) != "T":
            self._stopped.pop(pid, None)
            return False
        return time.monotonic() - self._stopped.setdefault(pid, time.monotonic()) >= STOPPED_S

    def silence(self) -> Trouble | None:
        """Ensembles that answer nobody. Answered traffic is the best probe and free; the others are asked, all at once.

        A server that is slow but answers others is under load: starting it again would lose their work. Nobody is asked
        while a process stands still that will soon be known as stopped: that is noticed here, not while a probe waits.
        """
        if self._stopped and STOPPED_S < PROBE_TIMEOUT_S:
            return None
        computing, trouble = self._computing(), None
        answering = self._count_answers()
        silent = [ensemble for ensemble in self._launch.ensembles if ensemble not in answering]
        url = self._launch.ports.http_url
        problems = probe.infer_all(url, silent, self.known_item(), PROBE_TIMEOUT_S) if silent else {}
        if problems:
            answering |= self._count_answers()
        for ensemble in self._launch.ensembles:
            if ensemble not in problems or ensemble in answering:
                self._failed[ensemble] = 0
                continue
            self._failed[ensemble] += 1
            most = COMPUTING_PROBES if computing & self._launch.models[ensemble] else FAILED_PROBES
            self._log.warning(
                "%s: probe %d of %d failed: %s",
                ensemble, self._failed[ensemble], most, problems[ensemble],
            )  # fmt: skip
            if self._failed[ensemble] >= most:
                trouble = Trouble(f"{most} probes failed")
        self._failed[LOOK] = 0
        return trouble

    def _computing(self) -> set[str]:
        """The models whose passes have computed since the last look at them."""
        before, then = self._computed
        pids = [pid for pid, model in self.models.items() if model in HAVE_PASSES]
        now, spent = time.monotonic(), {pid: tritonserver.computed_s(pid) for pid in pids}
        self._computed = now, spent
        least_s = COMPUTES * (now - before)
        return {self.models[pid] for pid in spent.keys() & then.keys() if spent[pid] - then[pid] > least_s}

    def could_not_look(self, error: Exception) -> Trouble | None:
        """Counts as a failed probe: the server may be well, but nobody knows any more."""
        self._failed[LOOK] += 1
        what = f"{type(error).__name__}: {error}"
        self._log.warning("look %d of %d failed: %s", self._failed[LOOK], FAILED_PROBES, what)
        return Trouble(f"{FAILED_PROBES} looks failed") if self._failed[LOOK] >= FAILED_PROBES else None

    @property
    def in_doubt(self) -> bool:
        """Whether the last probe of an ensemble, or the last look, failed."""
        return any(self._failed.values())

    def known_item(self) -> int:
        """What to probe with. While the catalogue's file cannot be read, the server goes on, and so does this."""
        try:
            self._item = self._launch.item()
        except ArtifactError as error:
            self._log.warning("%s", error)
        return self._item

    def _count_answers(self) -> set[str]:
        """The ensembles that have answered anyone since the last count that could be read."""
        now = probe.answered(self._launch.ports.metrics_url, METRICS_TIMEOUT_S)
        if now is None:
            return set()
        before, self._answered = self._answered, now
        return {e for e in self._launch.ensembles if e in before and now.get(e, 0) > before[e]}
