"""`genrec batch`: every user of the data set is answered, into a file."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cli.options import add_artifact, add_server, add_settings, at_least, check_where, tell_outdated
from cli.recommend import LOCAL, add_wishes, wishes_of
from genrec.errors import GenrecError
from genrec.words import counted

if TYPE_CHECKING:
    from clients.wire import Answered

CHECK_S = 0.5  # less than a start of a server takes: no other one is there and away again in between
ENSEMBLES = ("recommend", "recommend_draft", "recommend_and_rank")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Who answers, what, and where to."""
    add_artifact(parser)
    parser.add_argument(
        "--out", type=Path, required=True, metavar="FILE", help="takes the lists; ends in .parquet or .csv"
    )
    add_server(parser)
    parser.add_argument(
        "--ensemble", choices=ENSEMBLES, default="recommend", help="what answers; default: %(default)s"
    )
    parser.add_argument("--top-k", type=at_least(1), default=10, help="items of a list; default: %(default)s")
    add_wishes(parser)
    add_settings(parser, *LOCAL)


def run(a: argparse.Namespace) -> None:
    """Answer all of them; how it went goes to stderr."""
    from cli.batch_answers import local_answers, server_answers
    from cli.batch_files import BLOCK_USERS, blocks_of, users_in, writing
    from cli.show import name_of_server, other_catalogue
    from genrec.catalogue.keys import load_keys
    from genrec.progress import counting

    check_where(a, LOCAL)
    wishes, users = wishes_of(a), users_in(a.artifact)
    name = name_of_server(a.url, a.protocol) if a.url else ""
    if not a.url:
        tell_outdated(a.artifact)
    elif note := other_catalogue(a.artifact, name):
        print(note, file=sys.stderr)
    by, short, begun = Counter[str](), 0, time.monotonic()
    with (
        writing(a.out, load_keys(a.artifact), _key(a, wishes, users, name)) as lists,
        (server_answers if a.url else local_answers)(a, wishes) as answers_to,
        counting("batch", users, "user") as bar,
    ):
        if before := min(lists.blocks * BLOCK_USERS, users):
            bar.update(before)
            print(f"{a.out}: goes on behind {counted(before, 'user')} of a run that ended", file=sys.stderr)
        for block in blocks_of(a.artifact, lists.blocks):
            answers = list(_of_one(a, name, answers_to(block.known, bar)))
            lists.write(block, answers)
            by.update(each.by for each in answers)
            short += sum(len(each.item_ids) < a.top_k for each in answers)
    notes = [f"{counted(users - before, 'user')} in {time.monotonic() - begun:.1f} s"]
    notes += [f"{number} by {who}" for who, number in sorted(by.items())]
    versions = " and ".join(map(str, sorted(lists.versions)))
    notes += [f"catalogue version {versions}"] if versions else []
    notes += [f"{counted(short, 'list')} of fewer than {a.top_k} items"] if short else []
    print(f"{a.out}: {', '.join(notes)}", file=sys.stderr)


def _of_one(a: argparse.Namespace, name: str, answers: Iterable[Answered]) -> Iterator[Answered]:
    """`answers`, of the server of this `name` if any, which is asked for it every CHECK_S, and behind them. Raises as
    `_check_same`.
    """
    checked = time.monotonic()
    for each in answers:
        if name and time.monotonic() > checked + CHECK_S:
            _check_same(a, name)
            checked = time.monotonic()
        yield each
    if name:
        _check_same(a, name)


def _check_same(a: argparse.Namespace, name: str) -> None:
    """Raises GenrecError where the server is none that serves what that of this `name` did: a rollout may have been, or
    another start at its address. One that is away answered before it was.
    """
    from cli.show import name_of_server

    now = name_of_server(a.url, a.protocol)
    if now and _served(now) != _served(name):
        raise GenrecError(f"{a.url}: serves another artifact since; the lists are to be of one")


def _served(name: str) -> list[str]:
    """What the end of a server's name says that it serves, wherever it is."""
    return name.split("-")[-2:]


def _key(a: argparse.Namespace, wishes: dict[str, Any], users: int, server: str = "") -> str:
    """What answers follow from: those of a run that ended are taken over where all of it is the same. The `server` has
    a name.
    """
    from cli.batch_files import BLOCK_USERS
    from clients.rank_wire import RECOMMEND_AND_RANK
    from genrec.catalogue.versions import read_current
    from genrec.manifest import NAME, digest_file
    from genrec.rank.deltas import FOLDER

    ranked = a.ensemble == RECOMMEND_AND_RANK  # a delta changes the ranker, and has a manifest of its own
    deltas = sorted((a.artifact / FOLDER).glob(f"*/{NAME}")) if ranked else []
    facts = {
        "artifact": digest_file(a.artifact / NAME), "catalogue": read_current(a.artifact).version, "users": users,
        "ensemble": a.ensemble, "top_k": a.top_k, "wishes": wishes, "beam_width": None if a.url else a.beam_width,
        "block": BLOCK_USERS, "server": _served(server) if server else a.url,
        "deltas": [digest_file(each) for each in deltas],
    }  # fmt: skip
    return json.dumps(facts)
