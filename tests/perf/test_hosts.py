"""Hosts of their own: they reach each other, never the machine's network, and nobody over a link that is cut."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from perf.kit.hosts import Hosts, isolated_hosts, why_none

HERE = why_none()
pytestmark = pytest.mark.skipif(bool(HERE), reason=HERE)
LISTEN = (
    "import socket, time; s = socket.create_server(('0.0.0.0', 21999)); print(flush=True); time.sleep(600)"
)
REACH = "import socket, sys; socket.create_connection((sys.argv[1], 21999), timeout=2)"


def reaches(hosts: Hosts, host: int, address: str) -> bool:
    command = hosts.command(host, [sys.executable, "-c", REACH, address])
    return subprocess.run(command, stderr=subprocess.DEVNULL).returncode == 0


@contextmanager
def listening(hosts: Hosts, host: int) -> Iterator[None]:
    """Somebody who can be reached there."""
    process = subprocess.Popen(hosts.command(host, [sys.executable, "-c", LISTEN]), stdout=subprocess.PIPE)
    try:
        assert process.stdout and process.stdout.readline() == b"\n"
        yield
    finally:
        process.kill()
        process.communicate()


def test_links_are_cut_and_joined() -> None:
    with isolated_hosts(2) as hosts, listening(hosts, 0):
        assert reaches(hosts, 1, hosts.address(0)) and not reaches(hosts, 1, "127.0.0.1")
        routes = subprocess.run(hosts.command(1, ["ip", "route"]), capture_output=True, text=True).stdout
        assert routes.startswith("10.77.0.0/24 dev eth0 ") and routes.count("\n") == 1, "a way elsewhere"
        hosts.cut(0)
        assert not reaches(hosts, 1, hosts.address(0))
        hosts.join(0)
        hosts.limit(0.1)
        assert reaches(hosts, 1, hosts.address(0))


def test_nothing_is_left_behind() -> None:
    with isolated_hosts(1) as first, isolated_hosts(2) as second:
        made = {first.command(0, [])[3], second.command(1, [])[3]}
        assert len(made) == 2 and all((Path("/run/netns") / name).exists() for name in made)
    assert not any((Path("/run/netns") / name).exists() for name in made)


def test_a_link_carries_what_it_was_given() -> None:
    """Bits, not times: what the shaper says of itself."""
    with isolated_hosts(1) as hosts:
        hosts.limit(0.5)
        said = subprocess.run(
            hosts.command(0, ["tc", "qdisc", "show", "dev", "eth0"]), capture_output=True, text=True
        )
        assert "tbf" in said.stdout and "rate 500Mbit" in said.stdout
