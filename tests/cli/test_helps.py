"""What `genrec VERB --help` says: something of every option, what its default is, and nothing twice."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import pytest

from cli.main import parser


def parsers(top: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Those of all verbs, and of what verbs do."""
    yield top
    for action in top._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                yield from parsers(each)


OPTIONS = [
    pytest.param(action, id=f"{each.prog} {action.option_strings[0]}")
    for each in parsers(parser())
    for action in each._actions
    if action.option_strings
]


@pytest.mark.parametrize("option", OPTIONS)
def test_every_option_has_a_help(option: argparse.Action) -> None:
    assert option.help
    assert not option.help.rstrip().endswith(":"), "a default that is empty is none"
    if option.choices:
        assert ", ".join(option.choices) not in option.help, "argparse prints choices"
