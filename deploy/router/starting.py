"""Servers that are to come: whoever does not want them any more need not wait until they answer, and nobody is given to
one that does not.
"""

from __future__ import annotations

from collections.abc import Iterable

from deploy import probe
from deploy.launcher import RunningServer
from deploy.supervisor import Supervisor
from genrec.errors import InputError

ANSWER_S = 5.0


class Starting:
    """What `running_server` is given to tell its supervisors to, and the end of all of them."""

    def __init__(self) -> None:
        self._over = False
        self._known: list[Supervisor] = []

    def add(self, supervisor: Supervisor) -> None:
        """One that is about to start."""
        self._known.append(supervisor)
        if self._over:
            supervisor.stop(wait=False)

    def end(self) -> None:
        """Those that are known, and those that will be."""
        self._over = True
        for each in self._known:
            each.stop(wait=False)


def check_answers(servers: Iterable[RunningServer]) -> None:
    """Raises the error of a server that has given up, and InputError for one that is just being started again."""
    for server in servers:
        if server.supervisor.error:
            raise server.supervisor.error
        if not probe.server_id(server.http_url, ANSWER_S).startswith(server.supervisor.prefix):
            problem = f"has a server that does not answer, {server.http_url}, run folder {server.run_dir}"
            raise InputError("new", problem, "servers that all answer")
