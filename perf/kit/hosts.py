"""Hosts of their own on one machine: network namespaces behind a bridge, with no way to the machine's own network.

What they say to each other goes through one link each, which can be cut, joined again and given a rate. Needs Linux,
root, and the commands ip and tc.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count

_made = count()  # by this process: several sets may live at once


class Hosts:
    """Numbered from 0. Each has loopback and the address `address(host)`."""

    def __init__(self, name: str, hosts: int) -> None:
        self._name, self.hosts = name, hosts

    def address(self, host: int) -> str:
        """Of a host, for the others."""
        return f"10.77.0.{host + 1}"

    def command(self, host: int, command: Sequence[str]) -> list[str]:
        """The command that runs `command` on a host."""
        return ["ip", "netns", "exec", self._space(host), *command]

    def cut(self, host: int) -> None:
        """From now on it reaches nobody, and nobody reaches it; connections hang."""
        _run(["ip", "-n", self._space(None), "link", "set", f"port{host}", "down"])

    def join(self, host: int) -> None:
        """The link of a host is whole again."""
        _run(["ip", "-n", self._space(None), "link", "set", f"port{host}", "up"])

    def limit(self, gbit_s: float) -> None:
        """What every host may send."""
        # Of bytes at once: a hundredth of a second, two large packets
        most = max(int(gbit_s * 1e9 / 8 / 100), 1 << 17)
        for host in range(self.hosts):
            rate = ["rate", f"{round(gbit_s * 1e6)}kbit", "burst", str(most), "latency", "100ms"]
            _run(["tc", "-n", self._space(host), "qdisc", "replace", "dev", "eth0", "root", "tbf", *rate])

    def _make(self) -> None:
        bridge = self._space(None)
        _run(["ip", "netns", "add", bridge])
        _run(["ip", "-n", bridge, "link", "add", "bridge", "type", "bridge"])
        _run(["ip", "-n", bridge, "link", "set", "bridge", "up"])
        for host in range(self.hosts):
            space, port = self._space(host), f"port{host}"
            own = ["ip", "-n", space]
            _run(["ip", "netns", "add", space])
            _run([*own, "link", "set", "lo", "up"])
            _run([*own, "link", "add", "eth0", "type", "veth", "peer", "name", port, "netns", bridge])
            _run(["ip", "-n", bridge, "link", "set", port, "master", "bridge"])
            _run(["ip", "-n", bridge, "link", "set", port, "up"])
            _run([*own, "addr", "add", f"{self.address(host)}/24", "dev", "eth0"])
            _run([*own, "link", "set", "eth0", "up"])

    def _remove(self) -> None:
        for host in (*range(self.hosts), None):
            subprocess.run(["ip", "netns", "del", self._space(host)], stderr=subprocess.DEVNULL)

    def _space(self, host: int | None) -> str:
        """A namespace's name; None: that of the bridge."""
        return f"{self._name}-{'bridge' if host is None else host}"


@contextmanager
def isolated_hosts(hosts: int) -> Iterator[Hosts]:
    """So many, until the end. Raises OSError where the system gives none."""
    made = Hosts(f"genrec-{os.getpid()}-{next(_made)}", hosts)
    try:
        made._make()
        yield made
    finally:
        made._remove()


def why_none() -> str:
    """Why there can be no such hosts here, or nothing."""
    if missing := [name for name in ("ip", "tc") if shutil.which(name) is None]:
        return f"{missing[0]} is not there"
    try:
        with isolated_hosts(1) as hosts:
            hosts.limit(1.0)
    except OSError as error:
        return str(error)
    return ""


def _run(command: Sequence[str]) -> None:
    ended = subprocess.run(command, capture_output=True, text=True)
    if ended.returncode:
        raise OSError(f"{' '.join(command)}: {ended.stderr.strip()}")
