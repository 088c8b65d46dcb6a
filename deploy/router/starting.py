"""Servers that another thread starts: whoever does not want them any more need not wait until they answer."""

from __future__ import annotations

from deploy.supervisor import Supervisor


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
