"""`genrec recommend`: ask once."""

from __future__ import annotations

import argparse

from cli.options import add_question, add_settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Whom to ask, and what."""
    add_question(parser, "take the history of this user of the data set instead")
    parser.add_argument("--exclude-history", action="store_true", help="do not answer items of the history")
    add_decoder(parser)
    add_settings(parser, "beam_width")


def add_decoder(parser: argparse.ArgumentParser) -> None:
    """Which of the two answers."""
    parser.add_argument(
        "--decoder", choices=("beam", "draft"), default="beam", help="decode passes, or the draft head"
    )


def run(a: argparse.Namespace) -> None:
    """Print the answer, a line per item."""
    from cli.show import answer_lines, ask_local, ask_server, history_of

    history = a.history if a.user is None else history_of(a.artifact, a.user)
    ask = (
        ask_server(a.url, a.protocol, a.decoder) if a.url else ask_local(a.artifact, a.beam_width, a.decoder)
    )
    print("\n".join(answer_lines(a.artifact, history, ask(history, a.top_k, a.exclude_history))))
