"""`genrec recommend`: ask once."""

from __future__ import annotations

import argparse
from typing import Any

from cli.options import add_question, add_settings, check_where, groups, tell_outdated

LOCAL = ("beam_width",)  # settings that a server has for itself


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Whom to ask, and what."""
    add_question(parser, "take the history of this user of the data set instead")
    add_wishes(parser)
    add_decoder(parser)
    add_settings(parser, *LOCAL)


def add_wishes(parser: argparse.ArgumentParser) -> None:
    """What may be answered."""
    parser.add_argument("--exclude-history", action="store_true", help="do not answer items of the history")
    parser.add_argument("--exclude", metavar="ITEMS", help="do not answer these either: ids or keys")
    parser.add_argument("--only", metavar="ITEMS", help="answer none but these: ids or keys")
    add_groups(parser)


def add_groups(parser: argparse.ArgumentParser) -> None:
    """The same of groups that the catalogue has (`genrec catalogue group`)."""
    for name, what in (
        ("exclude", "do not answer items of these groups"),
        ("only", "answer none but theirs"),
    ):
        parser.add_argument(f"--{name}-groups", type=groups, metavar="NAMES", help=f"{what}: sale,new")


def wishes_of(a: argparse.Namespace) -> dict[str, Any]:
    """The same for a request. Raises InputError for items that the artifact does not know by these names."""
    from cli.show import items_of

    wishes: dict[str, Any] = {"exclude_history": a.exclude_history}
    for name in ("exclude", "only"):
        if (given := getattr(a, name)) is not None:
            wishes[name] = items_of(a.artifact, name, given)
    return {**wishes, "exclude_groups": a.exclude_groups, "only_groups": a.only_groups}


def add_decoder(parser: argparse.ArgumentParser) -> None:
    """Which of the two answers."""
    parser.add_argument(
        "--decoder",
        choices=("beam", "draft"),
        default="beam",
        help="decode passes (beam), or the draft head; default: beam",
    )


def run(a: argparse.Namespace) -> None:
    """Print the answer, a line per item."""
    from cli.show import answer_lines, ask_local, ask_server, items_of, user_of, why_untitled

    check_where(a, LOCAL)
    if a.user is None:
        history = items_of(a.artifact, "history", a.history)
    else:
        history = user_of(a.artifact, a.user).items.tolist()
    wishes = wishes_of(a)
    if a.url:
        ask = ask_server(a.url, a.protocol, a.decoder, a.deadline_ms)
    else:
        tell_outdated(a.artifact)
        ask = ask_local(a.artifact, a.beam_width, a.decoder)
    answer = ask(history, a.top_k, **wishes)
    untitled = why_untitled(a.artifact, a.url, a.protocol, answer.catalogue_version) if a.url else ""
    print("\n".join(answer_lines(a.artifact, history, answer, untitled)))
