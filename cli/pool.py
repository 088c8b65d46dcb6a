"""`genrec pool`: KV that is reused, in the servers that serve an artifact on this machine."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from cli.options import add_artifact
from genrec.words import counted

TRIES, PAUSE_S = 20, 0.05  # of a table that another process may hold
T = TypeVar("T")
ACTIONS = {
    "status": ("what is in it, and what was found in it", "genrec pool status artifacts/ml-100k"),
    "forget": ("delete what is kept of a user", "genrec pool forget artifacts/ml-100k 42"),
    "fill": ("compute KV of items ahead, the most popular first", "genrec pool fill artifacts/ml-100k"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The actions and their arguments."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    for action, (what, example) in ACTIONS.items():
        made = actions.add_parser(
            action, help=what, description=what, epilog=f"example: {example}", allow_abbrev=False
        )
        add_artifact(made)
        if action == "forget":
            made.add_argument(
                "user", type=_user, help="the user_id of the requests, or as the source spells him"
            )


def _user(text: str) -> int | str:
    """An id, or a name: 007 is no number, but perhaps how the source spells somebody."""
    from training.data.keys import is_plain

    return int(text) if is_plain(text) else text


def user_id_of(artifact: Path, user: int | str) -> int:
    """Of one who is named as the source spells him, from the histories. Raises InputError, ArtifactError."""
    if isinstance(user, int):
        return user
    from cli.show import user_of

    return int(user_of(artifact, user).user_ids[0])


def run(a: argparse.Namespace) -> None:
    """Do it in the pool of every server. Raises InputError where there is none, ArtifactError after all were tried."""
    from deploy.pools import pools_of
    from genrec.errors import ArtifactError, InputError

    pools = pools_of(a.artifact)
    if not pools:
        raise InputError(
            "artifact", f"no server here has a pool of {a.artifact}", "one that is served with a pool"
        )
    failed = None
    for path in pools:
        try:
            print(_done(a, path))
        except ArtifactError as error:
            failed = error
    if failed:
        raise failed


def _done(a: argparse.Namespace, path: Path) -> str:
    """What was done in one pool, or what is in it."""
    from genrec.nodes.node_share import NodeShare
    from genrec.pool.forget import forget
    from genrec.pool.keys import owner_key
    from genrec.pool.pool import Pool

    if a.action == "fill":
        return f"{counted(_fill(a.artifact, path), 'item')} computed"
    pool = Pool(path)
    if a.action == "forget":
        user = user_id_of(a.artifact, a.user)
        deleted = forget(pool, owner_key(pool.secret, user), partial(_in_reach, path))
        assert deleted is not None  # or it is an error by now
        return f"{counted(deleted, 'entry', 'entries')} of user {a.user} deleted"
    usage, share = _in_reach(path, pool.usage), NodeShare.load(path)
    said = {**usage, "node": share.node, "nodes": share.nodes, "replicated": f"{share.replicated:.1%}"}
    return "\n".join(f"  {name:>16}  {number}" for name, number in said.items())


def _in_reach(path: Path, work: Callable[[], T | None]) -> T:
    """What `work` answers once the pool's table is to be had. Raises ArtifactError if that is never."""
    from genrec.errors import ArtifactError

    for _ in range(TRIES):
        if (found := work()) is not None:
            return found
        time.sleep(PAUSE_S)
    raise ArtifactError(
        path, "cannot be read or changed: it is damaged, or a process that was stopped holds it"
    )


def _fill(artifact: Path, pool: Path) -> int:
    from deploy.pools import swap_of
    from genrec.engine.fill import fill
    from genrec.settings import Settings

    return fill(Settings(artifact, pool, pool=pool, swap=swap_of(pool)))
