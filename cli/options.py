"""Settings as options of the command line."""

from __future__ import annotations

import argparse

from genrec.settings import accepted, chosen_fields


def add_settings(parser: argparse.ArgumentParser, *names: str) -> None:
    """An option for each of these settings, as the fields of `genrec.settings.Settings` describe them."""
    for each in chosen_fields():
        if each.name in names:
            parser.add_argument(
                f"--{each.name.replace('_', '-')}",
                type=type(each.default),
                default=each.default,
                choices=each.metadata["one_of"] or None,
                help=f"{each.metadata['help']}; {accepted(each)}; default: {each.default}",
            )
