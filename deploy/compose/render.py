"""Writes the router's configuration for `compose.yml`, whose servers have fixed ports.

python -m deploy.compose.render
"""

from __future__ import annotations

from pathlib import Path

from deploy.ports import Ports
from deploy.router.config import ServerPlace, render
from deploy.router.limits import Limits

CONFIG = Path(__file__).with_name("haproxy.cfg")
SERVERS = (Ports(8100, 8101, 8102), Ports(8200, 8201, 8202))
ROUTER = Ports(8000, 8001, 8002)


def configuration() -> str:
    """For servers and router on one machine."""
    places = [ServerPlace(f"s{n}", ports.http, ports.grpc, 100) for n, ports in enumerate(SERVERS, 1)]
    return render(places, len(places), Limits(), ROUTER, Path("/tmp/admin"))


if __name__ == "__main__":
    CONFIG.write_text(configuration())
