"""`genrec pool`: KV that is reused, in the servers that serve an artifact on this machine."""

from __future__ import annotations

import argparse
from pathlib import Path

from cli.options import folder

ACTIONS = {
    "status": ("what is in it, and what was found in it", "genrec pool status artifacts/ml-100k"),
    "forget": ("delete what is kept of a user", "genrec pool forget artifacts/ml-100k 42"),
    "fill": ("compute KV of items ahead, the most popular first", "genrec pool fill artifacts/ml-100k"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The actions and their arguments."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    for action, (what, example) in ACTIONS.items():
        made = actions.add_parser(action, help=what, description=what, epilog=f"example: {example}")
        made.add_argument("artifact", type=folder, help="the artifact folder, e.g. artifacts/ml-100k")
        if action == "forget":
            made.add_argument("user", type=int, help="the user_id of the requests")


def run(a: argparse.Namespace) -> None:
    """Do it in the pool of every server. Raises InputError where there is none."""
    from deploy.pools import pools_of
    from genrec.errors import InputError
    from genrec.pool.held import Held
    from genrec.pool.keys import owner_key
    from genrec.pool.pool import Pool

    pools = pools_of(a.artifact)
    if not pools:
        raise InputError("artifact", f"no server here ranks with {a.artifact}", "one that is being served")
    for path in pools:
        pool = Pool(path)
        if a.action == "forget":
            print(f"{pool.forget(owner_key(pool.secret, a.user))} entries of user {a.user} deleted")
        elif a.action == "fill":
            print(f"{_fill(a.artifact, path)} items computed")
        else:
            held = Held.load(path)
            said = {
                **pool.usage(),
                "node": held.node,
                "nodes": held.nodes,
                "replicated": f"{held.replicated:.1%}",
            }
            print("\n".join(f"  {name:>16}  {number}" for name, number in said.items()))


def _fill(artifact: Path, pool: Path) -> int:
    from genrec.engine.fill import fill
    from genrec.settings import Settings

    return fill(Settings(artifact, pool, pool=pool))
