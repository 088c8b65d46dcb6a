"""Servers of one artifact behind a router, and the way to another artifact: start, probe, shift, drain, stop.

A request is answered by one server, and a server has one artifact, so no answer can mix two. Places of the router are
in two halves: one serves, the other is for the servers to come. Until the old servers are stopped, everything can be
undone, and is when anything fails.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from deploy.launcher import RunningServer, running_server
from deploy.ports import Ports
from deploy.router.config import ServerPlace
from deploy.router.haproxy import Router, RouterError, running_router
from deploy.router.limits import MOST_SERVERS, Limits
from deploy.router.starting import Starting, check_answers
from genrec.catalogue.versions import catalogue_id
from genrec.errors import InputError
from genrec.files import write_whole

STATE = "fleet.json"  # in the router's folder: what it serves
DRAIN_S = 65.0  # no client waits longer for an answer than a minute
LOOK_S = 0.05
Tell = Callable[[str], None]
T = TypeVar("T")
log = logging.getLogger("genrec.serve")


@dataclass
class Generation:
    """The servers of one artifact and their places; closing `stack` stops them."""

    artifact: Path
    places: tuple[str, ...]
    servers: list[RunningServer] = field(default_factory=list)
    stack: ExitStack = field(default_factory=ExitStack)
    catalogue: str = ""  # `catalogue_id`

    @property
    def labels(self) -> dict[str, str]:
        """Of its servers' metrics. Folders of two artifacts may have one name: alerts go by the catalogue."""
        return {"artifact": self.artifact.name, "catalogue": self.catalogue}


class Fleet:
    """A router with the servers behind it. For one thread at a time."""

    def __init__(
        self, router: Router, halves: tuple[tuple[str, ...], ...], options: dict[str, Any], targets: Path | None
    ) -> None:  # fmt: skip
        """`targets` is a file for Prometheus, which reads it again when it changes (file_sd)."""
        self.router, self.share, self._targets = router, 0, targets
        self._halves, self._options = halves, options
        self.serving = Generation(Path(), ())
        self.coming: Generation | None = None

    def begin(self, artifact: Path) -> None:
        """The first servers. Raises as `running_server`."""
        self.serving = self._start(artifact, log.info)
        self._weigh(dict.fromkeys(self.serving.places, 100))
        self._write_state()

    def move(self, artifact: Path, share: int, tell: Tell = log.info) -> None:
        """Let another artifact answer `share` percent of the users: 100 ends the old servers, 0 the new ones.

        Whatever fails before the old servers are ended, an exception of `tell` too, leaves them with all users. Raises
        InputError, and as `running_server`; a damaged artifact before any process of its is started.
        """
        if not 0 <= share <= 100:
            raise InputError("share", f"is {share}", "0 to 100 percent")
        if artifact == self.serving.artifact:
            raise InputError("new", f"{artifact} is served already", "another artifact")
        if self.coming and artifact != self.coming.artifact:
            limit = f"{self.coming.artifact}, which has {self.share} % of the users, or --undo of it first"
            raise InputError("new", f"is {artifact}", limit)
        if not self.coming:
            if not share:
                raise InputError("undo", f"of {artifact}, which has no servers here", "after a rollout to it")
            self.coming = self._start(artifact, tell)
        try:
            if share:
                check_answers(self.coming.servers)  # one may have ended since an earlier share
            self._shift(share, tell)
            for server in self.coming.servers if share else ():
                tell(where(server))
            if share == 100:
                self._drain(self.serving, tell)
                check_answers(self.coming.servers)
                tell(f"ending the servers of {self.serving.artifact}")  # whoever is gone by now undoes all
        except BaseException:
            self._undo()
            raise
        if share == 100:
            over, self.serving, self.coming, self.share = self.serving, self.coming, None, 0
            try:
                self._write_state()  # first: the old ones may not end as they should
            finally:
                self._stop(over)
        elif share == 0:
            self._undo()

    def close(self) -> None:
        """End all servers, though one does not end as it should; its error is raised then."""
        with ExitStack() as all_servers:
            for generation in self._generations():
                all_servers.callback(generation.stack.close)
            # Before one is waited for: systemd ends all processes at once, and each would be started again till then.
            for server in self._running():
                server.supervisor.stop(wait=False)
            # Triton ends when the last connection to it does, and the router keeps those that nobody uses for seconds.
            with suppress(RouterError):  # its own errors matter no more
                for place in chain.from_iterable(each.places for each in self._generations()):
                    self.router.empty(place)
            self._write_targets([])

    def check(self) -> None:
        """Start a router again that has ended. Raises RouterError, and a server's error when all have given up.

        As long as one answers, the router gives it the users of the others.
        """
        self._keep_router()
        running = self._running()
        errors = [error for server in running if (error := server.supervisor.error)]
        if len(errors) == len(running):
            raise errors[0]

    def _generations(self) -> list[Generation]:
        return [self.serving, *([self.coming] if self.coming else [])]

    def _running(self) -> list[RunningServer]:
        return [server for generation in self._generations() for server in generation.servers]

    def _keep_router(self) -> None:
        """One that was started again has forgotten who serves whom, and is told. Raises RouterError."""
        for generation in self._generations() if self.router.revive() else ():
            for place, server in zip(generation.places, generation.servers, strict=True):
                self.router.fill(place, server.ports)
            share = self.share if generation is self.coming else 100 - self.share
            self._weigh(dict.fromkeys(generation.places, share))
        if not (self.router.folder / STATE).exists():  # removed, or not to be written
            with suppress(OSError):  # a full /dev/shm
                self._write_state()

    def _start(self, artifact: Path, tell: Tell) -> Generation:
        """Servers that answer, in the places that are free, with no users yet; all of them or none."""
        free = next(half for half in self._halves if half != self.serving.places)
        made, starting = Generation(artifact, free), Starting()
        options = {**self._options, "supervised": starting.add}
        try:
            for number in range(1, len(free) + 1):
                tell(f"starting server {number} of {len(free)} with {artifact}")
                start = partial(made.stack.enter_context, running_server(artifact, **options))
                made.servers.append(self._meanwhile(start, starting.end))
                self._check_ensembles(made.servers[-1])
            made.catalogue = catalogue_id(artifact)
            # Now, so that a router that was started again meanwhile has them all
            for place, server in zip(free, made.servers, strict=True):
                self.router.fill(place, server.ports)
        except BaseException:
            self._stop(made)
            raise
        return made

    def _check_ensembles(self, server: RunningServer) -> None:
        """Clients ask by name: what was served must be served on."""
        served = {name for old in self.serving.servers for name in old.ensembles}
        if missing := served - set(server.ensembles):
            raise InputError("new", f"does not serve {', '.join(sorted(missing))}", ", ".join(sorted(served)))

    def _shift(self, share: int, tell: Tell) -> None:
        assert self.coming
        tell(f"{share} % of the users go to {self.coming.artifact}")
        self.share = share
        new = dict.fromkeys(self.coming.places, share)
        self._weigh(new | dict.fromkeys(self.serving.places, 100 - share))
        self._write_state()

    def _weigh(self, weights: dict[str, int]) -> None:
        """The largest first, so that at no moment nobody has weight."""
        for place, weight in sorted(weights.items(), key=lambda each: -each[1]):
            self.router.weigh(place, weight)

    def _undo(self) -> None:
        """All users to the old servers; the new ones end, whatever the router says. Raises RouterError."""
        over, self.coming, self.share = self.coming, None, 0
        assert over
        try:
            self._keep_router()
            self._weigh(dict.fromkeys(self.serving.places, 100) | dict.fromkeys(over.places, 0))
            self._write_state()
            self._drain(over, log.info)
        finally:
            self._stop(over)

    def _drain(self, generation: Generation, tell: Tell) -> None:
        """Until its servers have answered what they were asked."""
        deadline = time.monotonic() + DRAIN_S
        tell(f"waiting for the last answers of {generation.artifact}")
        while self.router.busy(generation.places):
            if time.monotonic() > deadline:
                log.warning("after %.0f s there is still work in %s", DRAIN_S, generation.artifact)
                return
            time.sleep(LOOK_S)

    def _stop(self, generation: Generation) -> None:
        """Its servers end even where the router no longer takes them out. Raises RouterError."""
        try:
            for place in generation.places:
                self.router.empty(place)
        finally:
            self._meanwhile(generation.stack.close)

    def _meanwhile(self, work: Callable[[], T], break_off: Callable[[], None] = lambda: None) -> T:
        """What `work` gives, on another thread, as it takes long: until then a router that ends is started again.

        While nobody is served it runs in this one, where a signal ends it at once; else `break_off` is to end it soon.
        Raises RouterError, and as `work`, which is over by then.
        """
        if not self.serving.servers:
            return work()
        with ThreadPoolExecutor(1) as thread:
            given = thread.submit(work)
            try:
                while not wait([given], LOOK_S).done:
                    self._keep_router()
            except BaseException:
                break_off()
                raise
        return given.result()

    def _write_state(self) -> None:
        """For those who look for the router of an artifact, and for whoever scrapes its servers."""
        coming = str(self.coming.artifact) if self.coming else ""
        at = self.router.ports
        about = {
            "serving": str(self.serving.artifact), "coming": coming, "share": self.share,
            "at": [at.http_url, at.grpc_url],
        }  # fmt: skip
        try:
            write_whole(self.router.folder / STATE, json.dumps(about))
        except OSError:
            (self.router.folder / STATE).unlink(missing_ok=True)  # what it says is so no more
            raise
        of_servers = [
            {"targets": [server.metrics_url], "labels": {**each.labels, "place": place}}
            for each in self._generations()
            for place, server in zip(each.places, each.servers, strict=True)
        ]
        self._write_targets([{"targets": [self.router.ports.metrics_url]}, *of_servers])

    def _write_targets(self, groups: list[dict[str, Any]]) -> None:
        """What runs goes on where it cannot be told."""
        if not self._targets:
            return
        try:
            write_whole(self._targets, json.dumps(groups))
        except OSError as error:
            log.warning("targets for Prometheus cannot be written: %s", error)


def where(server: RunningServer) -> str:
    """A server is asked and scraped, and has its log and server.json, for people."""
    at = f"http {server.http_url}  metrics http://{server.metrics_url}/metrics"
    return f"server: {at}  run folder {server.run_dir}"


@contextmanager
def running_fleet(
    artifact: Path, servers: int, limits: Limits, ports: Ports, targets: Path | None = None, **options: Any
) -> Iterator[Fleet]:
    """So many servers of an artifact behind a router on these ports; all ended on leaving.

    `targets`: see `Fleet`. `options` are those of `running_server`, ports left out. Raises as that, and RouterError.
    """
    if not 1 <= servers <= MOST_SERVERS:
        raise InputError("servers", f"is {servers}", f"1 to {MOST_SERVERS}")
    if targets and (targets.is_dir() or not targets.parent.is_dir()):
        problem = "which is a folder" if targets.is_dir() else "whose folder is missing"
        raise InputError("targets", f"is {targets}, {problem}", "a file in a folder that exists")
    halves = tuple(tuple(f"{half}{n}" for n in range(1, servers + 1)) for half in "ab")
    places = [ServerPlace(name) for half in halves for name in half]
    with running_router(places, servers, limits, ports) as router:
        fleet = Fleet(router, halves, options, targets)
        try:
            fleet.begin(artifact.resolve())
            yield fleet
        finally:
            fleet.close()
