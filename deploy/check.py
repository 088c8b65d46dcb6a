"""The deep probe as a command, for Kubernetes: a real request to every ensemble named.

python3 -m deploy.check /artifact 127.0.0.1:8000 recommend
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from deploy import probe
from genrec import leftovers
from genrec.catalogue import agreement
from genrec.errors import GenrecError

TIMEOUT_S = 8.0  # below what the chart's probes wait
ACCEPTED = "an artifact, host:port of HTTP, and the ensembles to ask"


def main(argv: Sequence[str]) -> int:
    """0 when all answer, or refuse under load; else 1, and what is wrong on stderr."""
    if len(argv) < 3:
        print(f"deploy.check: is given {list(argv)} (accepted: {ACCEPTED})", file=sys.stderr)
        return 1
    artifact, (http_url, *ensembles) = Path(argv[0]), argv[1:]
    # As deploy.switch, which imports too much for a look every few seconds
    served = (each for each in leftovers.of_the_living(leftovers.SWAP) if agreement.serves(each, artifact))
    try:
        item = probe.known_item(artifact, next(served, None))
    except GenrecError as error:
        print(error, file=sys.stderr)
        return 1
    problems = probe.infer_all(http_url, ensembles, item, TIMEOUT_S)
    for ensemble, problem in problems.items():
        print(f"{ensemble}: {problem}", file=sys.stderr)
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
