"""A process that never answers in a server's place."""

from __future__ import annotations

import os
from pathlib import Path

from deploy.launch import Launch
from deploy.ports import choose_ports
from genrec import leftovers


def launch(folder: Path) -> Launch:
    """It has no ensembles, and writes to a log in that folder."""
    return Launch(
        argv=lambda: ["/bin/sleep", "600"],
        environment=dict(os.environ),
        prefix=leftovers.own_prefix(),
        secrets=(),
        control_headers={},
        verify=lambda: None,
        unchanged=lambda: True,
        prepare=lambda: None,
        ports=choose_ports(),
        item=lambda: 0,
        ensembles=(),
        models={},
        log_file=folder / "server.log",
        start_timeout_s=600.0,
        probe_every_s=5.0,
    )
