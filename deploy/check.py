"""The deep probe as a command, for Kubernetes: a real request to every ensemble named.

python3 -m deploy.check /artifact 127.0.0.1:8000 recommend
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from deploy import probe
from genrec.errors import GenrecError

TIMEOUT_S = 8.0  # below what the chart's probes wait
ACCEPTED = "an artifact, host:port of HTTP, and the ensembles to ask"


def main(argv: Sequence[str]) -> int:
    """0 when all answer, or refuse under load; else 1, and what is wrong on stderr."""
    if len(argv) < 3:
        print(f"deploy.check: is given {list(argv)} (accepted: {ACCEPTED})", file=sys.stderr)
        return 1
    artifact, http_url, *ensembles = argv
    try:
        item = probe.known_item(Path(artifact))
    except GenrecError as error:
        print(error, file=sys.stderr)
        return 1
    problems = probe.infer_all(http_url, ensembles, item, TIMEOUT_S)
    for ensemble, problem in problems.items():
        print(f"{ensemble}: {problem}", file=sys.stderr)
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
