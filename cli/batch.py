"""`genrec batch`: every user of the data set is answered, into a file."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

from cli.options import add_artifact, add_server, add_settings, at_least, check_where, tell_outdated
from cli.recommend import LOCAL, add_wishes, wishes_of
from genrec.words import counted

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
    from cli.batch_files import blocks_of, users_in, writing
    from cli.show import other_catalogue
    from genrec.catalogue.keys import load_keys
    from genrec.progress import counting

    check_where(a, LOCAL)
    wishes, users = wishes_of(a), users_in(a.artifact)
    if not a.url:
        tell_outdated(a.artifact)
    elif note := other_catalogue(a.artifact, a.url, a.protocol):
        print(note, file=sys.stderr)
    by, versions, short, begun = Counter[str](), set[int](), 0, time.monotonic()
    with (
        writing(a.out, load_keys(a.artifact)) as write,
        (server_answers if a.url else local_answers)(a, wishes) as answers_to,
        counting("batch", users, "user") as bar,
    ):
        for block in blocks_of(a.artifact):
            answers = answers_to(block.known, bar)
            write(block, answers)
            by.update(each.by for each in answers)
            versions |= {each.catalogue_version for each in answers}
            short += sum(len(each.item_ids) < a.top_k for each in answers)
    notes = [f"{counted(users, 'user')} in {time.monotonic() - begun:.1f} s"]
    notes += [f"{number} by {who}" for who, number in sorted(by.items())]
    notes += [f"catalogue version {' and '.join(map(str, sorted(versions)))}"]
    notes += [f"{counted(short, 'list')} of fewer than {a.top_k} items"] if short else []
    print(f"{a.out}: {', '.join(notes)}", file=sys.stderr)
