"""The thread that owns a server: starts it, proves it ready, watches it, mends it, ends it.

A model whose process died or hangs is loaded again while the others go on; Triton 2.51 does not do so itself (H3), but
it loads a model anew that is marked as changed. For anything else the whole server is started again.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from subprocess import Popen

from deploy import probe, server_log, tritonserver
from deploy.command import EXIT_TIMEOUT_S
from deploy.launch import MORE_TIME, Launch, LaunchError, ServerLog, Stopped, ended_early, passes, too_late
from deploy.watch import Trouble, Watch
from genrec import leftovers
from genrec.catalogue import agreement
from genrec.errors import ArtifactError

WATCH_S, LOOK_S = 0.2, 0.05  # between looks at the processes, 30 us each; between questions while it starts
FAILED_STARTS = 3  # of those whose cause will not go by itself
LONGEST_PAUSE_S = 30.0  # between starts
# A server that stuck while loading was seen to load at once when started again; so a restart is given a few times
# what the first start took, and twice, three times that when it is tried again.
SLOWER_RESTART = 3.0
LEAST_RESTART_S = 30.0
RELOAD_S = 20.0  # for one model
BUILD_S, LOOK_AGAIN_S = 600.0, 1.0  # that a build may take while a model waits for it; after a look in vain
GRACE_S = EXIT_TIMEOUT_S + 5
GRACE_AFTER_RELOAD_S = 3.0  # what a dead process did not answer never ends, for Triton: it would wait in vain


class Supervisor:
    """One server's life. Its thread itself starts the process, which ends when its parent thread does."""

    def __init__(self, launch: Launch) -> None:
        self._thread = threading.Thread(target=self._live, name="genrec-supervisor", daemon=True)
        self.restarts = 0  # of the server, or of some of its models
        self.error: Exception | None = None
        self._not_ended: Exception | None = None  # why something of the server may still be there
        self._launch, self._log = launch, ServerLog(launch.ports.http_url)
        self._process: Popen[bytes] | None = None
        self._first_start_s = self._grace_s = self._unsound_since = 0.0
        self._begun = threading.Event()
        # Not Thread.join: a signal that interrupts a join makes Python 3.11 take the thread for ended.
        self._ended = threading.Event()
        self._stopping = threading.Event()
        self._on_start: Callable[[], None] = lambda: None
        self._told_of = 0  # the pid of the last server for which that ran well

    @property
    def pid(self) -> int:
        """Pid of the present server process, 0 when there is none."""
        return self._process.pid if self._process else 0

    @property
    def prefix(self) -> str:
        """What the names of the server's files in /dev/shm begin with."""
        return self._launch.prefix

    def start_and_wait(self, on_start: Callable[[], None]) -> None:
        """Start; return when the first deep probe is answered. `on_start` runs after each good start.

        An OSError of it ends the first one; after others, as on a full disk, it is tried again until there is none.
        """
        self._on_start = on_start
        self._thread.start()
        try:
            self._begun.wait()
        except BaseException:  # Ctrl-C while it loads
            self.stop()
            raise
        if self.error:
            self._ended.wait()
            raise self.error

    def wait(self) -> None:
        """Until the supervisor gives up. Raises its error."""
        while not self._ended.wait(0.5):
            pass
        if self.error:
            raise self.error

    def stop(self, wait: bool = True) -> None:
        """End the server and all of it, and `wait` until it is gone. Raises TimeoutError where it does not end."""
        self._stopping.set()
        if not self._grace_s and (starting := self._process):  # or a probe of it may go on for seconds
            starting.kill()
        if wait and self._thread.ident is not None:
            self._ended.wait()
        if wait and self._not_ended:
            raise self._not_ended

    def _live(self) -> None:
        """The thread: start, watch, end."""
        try:
            begun = time.monotonic()
            watch = self._start_first()
            self._first_start_s = time.monotonic() - begun
            self._on_start()
            self._told_of = self.pid
            self._begun.set()
            self._keep(watch)
        except Exception as error:  # handed to whoever waits
            if not (self._begun.is_set() and self._stopping.is_set()):  # else of a restart broken off
                self.error = error
            if self.error and self._begun.is_set():
                self._log.error("%s", error)
        finally:
            try:
                self._end(self._grace_s)
            except Exception as error:  # handed to whoever stops it
                self._not_ended = error
                self.error = self.error or error
            finally:
                self._begun.set()
                self._ended.set()

    def _start_first(self) -> Watch:
        """And once more where the server crashed: it starts well the next time."""
        try:
            return self._start(self._launch.start_timeout_s)
        except LaunchError as error:
            if not error.crashed or self._stopping.is_set():
                raise
            self._log.warning("the server crashed, and is started again: %s", error)
        self._end(grace_s=0)
        return self._start(self._launch.start_timeout_s)

    def _start(self, timeout_s: float) -> Watch:
        """What is shared, process, deep probe. Raises LaunchError, and what `prepare` does."""
        launch, log_file = self._launch, self._launch.log_file
        leftovers.remove(launch.prefix)
        launch.prepare()
        log_file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)  # somebody may have tidied it away
        server_log.rotate(log_file)
        log_start = log_file.stat().st_size if log_file.exists() else 0  # after what earlier starts wrote
        self._process = tritonserver.start(
            launch.argv(), launch.environment, log_file, launch.secrets, launch.prefix
        )
        self._grace_s, self._unsound_since = 0.0, 0.0  # before it answers, nobody waits for an answer of it
        deadline, problem = time.monotonic() + timeout_s, ""
        while True:
            if self._stopping.is_set():
                raise Stopped("stopped while starting", log_file, log_start)
            if self._process.poll() is not None:
                raise ended_early(self._process.returncode, log_file, log_start)
            left = deadline - time.monotonic()
            if left <= 0:
                longest = MORE_TIME if timeout_s == self._launch.start_timeout_s else ""
                raise too_late(problem, f"{timeout_s:.0f} s{longest}", log_file, log_start)
            self._stopping.wait(LOOK_S)
            leftovers.close_to_others(launch.prefix)  # as they appear: prompts pass there
            if not (problem := self._not_ready(left)):
                self._grace_s = GRACE_S
                return Watch(launch, self.pid)

    def _not_ready(self, left_s: float) -> str:
        """What is still missing. The first answers may wait for compilation: no shorter limit than the start's own."""
        launch = self._launch
        if not probe.server_id(launch.ports.http_url, timeout_s=1.0).startswith(launch.prefix):
            return "it does not answer"
        problems = probe.infer_all(launch.ports.http_url, launch.ensembles, launch.item(), left_s)
        if problems:
            return "; ".join(problems.values())
        # Bound last, after the server answers: another may have taken the port meanwhile.
        answered = probe.answered(launch.ports.metrics_url, timeout_s=1.0) or {}
        missing = [ensemble for ensemble in launch.ensembles if ensemble not in answered]
        return f"no metrics of it at {launch.ports.metrics_url}" if missing else ""

    def _keep(self, watch: Watch) -> None:
        """Watch and mend until stopped."""
        every_s = self._launch.probe_every_s
        next_probe = time.monotonic() + every_s
        while not self._stopping.wait(min(WATCH_S, every_s)):
            server_log.rotate(self._launch.log_file)
            asks = time.monotonic() >= next_probe
            trouble = self._look(watch, asks)
            if asks:
                self._tell()
                next_probe = time.monotonic() + (min(1.0, every_s) if watch.in_doubt else every_s)
            if not trouble:
                continue
            if trouble.models and self._waits(watch, trouble):
                continue
            if not self._mends(watch, trouble):
                self._log.warning("restarting the server: %s", trouble.told)
                watch = self._restart()
                self._tell()
                self._log.warning("the server answers again (pid %d)", self.pid)
            self.restarts += 1
            next_probe = time.monotonic() + every_s

    def _tell(self) -> None:
        """Run `on_start` once for a server. It answers: what cannot be written of it is no reason to start it again."""
        if self._told_of == self.pid:
            return
        try:
            self._on_start()
            self._told_of = self.pid
        except OSError as error:
            self._log.warning("what tells of the server cannot be written: %s", error)

    def _look(self, watch: Watch, asks: bool) -> Trouble | None:
        """What is wrong; `asks` for answers too. A look that fails is no reason to end a server that may be well."""
        try:
            return watch.processes() or (watch.silence() if asks else None)
        except Exception as error:  # of whatever stood in a file or an answer
            self._stopping.wait(LOOK_AGAIN_S)
            return watch.could_not_look(error)

    def _waits(self, watch: Watch, trouble: Trouble) -> bool:
        """Whether models that died stay away for now, as a file is not as it was made: a build may be under way.

        The other ensembles go on. After a while the server starts again, which says what is wrong or ends it.
        """
        try:
            self._launch.verify()
        except ArtifactError as error:
            if not self._unsound_since:
                self._unsound_since = time.monotonic()
                self._log.warning("%s: waiting for a sound artifact: %s", trouble.told, error)
            watch.forget_dead()
            if time.monotonic() - self._unsound_since < BUILD_S:
                self._stopping.wait(LOOK_AGAIN_S)
                return True
        else:
            self._unsound_since = 0.0
        return False

    def _mends(self, watch: Watch, trouble: Trouble) -> bool:
        """Whether new models were enough, of the artifact that the others read.

        A restart waits for one that cannot be read, and for /dev/shm that is full.
        """
        if not trouble.models or self._unsound_since:
            return False
        try:
            return self._launch.unchanged() and self._reload(watch, trouble)
        except (ArtifactError, OSError) as error:
            self._log.warning("%s", error)
            return False

    def _reload(self, watch: Watch, trouble: Trouble) -> bool:
        """Give models new processes, one after the other; whether all ensembles answer then."""
        self._log.warning("loading %s again: %s", ", ".join(sorted(trouble.models)), trouble.told)
        self._grace_s = GRACE_AFTER_RELOAD_S
        launch = self._launch
        for pid, model in watch.models.items():
            if model in trouble.models:
                with suppress(ProcessLookupError):
                    # It may be stopped, and others of the model work no more than it
                    os.kill(pid, signal.SIGKILL)
                agreement.forget(launch.swap, pid)
        for model in sorted(trouble.models):
            launch.private.mark_changed(model)
            if problem := probe.load_model(launch.ports.http_url, model, launch.control_headers, RELOAD_S):
                self._log.warning("%s cannot be loaded again: %s", model, problem)
                return False
            leftovers.close_to_others(launch.prefix)
        problems = probe.infer_all(launch.ports.http_url, launch.ensembles, watch.known_item(), RELOAD_S)
        if problems:
            self._log.warning("%s", "; ".join(problems.values()))
            return False
        watch.take_stock()
        self._log.warning("%s answer again", ", ".join(sorted(trouble.models)))
        return True

    def _restart(self) -> Watch:
        """On the same ports. No grace: with a dead stub Triton waits its whole exit timeout for nothing.

        What passes by itself is waited for, each time longer, and an artifact that is not sound for BUILD_S, as by a
        build. For anything else a person is needed after FAILED_STARTS.
        """
        begun = self._unsound_since or time.monotonic()
        patience_s = max(LEAST_RESTART_S, SLOWER_RESTART * self._first_start_s)
        failed, pause_s = 0, min(1.0, LONGEST_PAUSE_S)
        while True:
            self._end(grace_s=0)
            try:
                return self._start(min((failed + 1) * patience_s, self._launch.start_timeout_s))
            except Exception as error:
                may_be_built = isinstance(error, ArtifactError) and time.monotonic() - begun < BUILD_S
                failed += not (may_be_built or passes(error))
                if failed == FAILED_STARTS or self._stopping.is_set():
                    raise
                self._log.warning("the start failed, the next is in %.0f s: %s", pause_s, error)
            self._stopping.wait(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def _end(self, grace_s: float) -> None:
        if self._process:
            tritonserver.end(self._process, grace_s)
            self._process = None
        leftovers.remove(self._launch.prefix)
