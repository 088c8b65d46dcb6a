"""Ids may be negative, so a list of them may begin with a dash and is no option."""

from __future__ import annotations

import pytest

from cli.main import parser

GIVEN = {
    "of a history": (["recommend", "a", "--history", "-5,-19"], "history", "-5,-19"),
    "of one item": (["recommend", "a", "--history", "-5"], "history", "-5"),
    "with ids above zero": (["rank", "a", "--history", "-5,19", "--candidates", "7,-98"], "history", "-5,19"),
    "of candidates": (["rank", "a", "--history", "5", "--candidates", "-7,98"], "candidates", "-7,98"),
    "without an option": (["catalogue", "remove", "a", "-50,-172"], "items", "-50,-172"),
}


@pytest.mark.parametrize("case", GIVEN)
def test_a_list_may_begin_with_a_negative_id(case: str) -> None:
    arguments, name, value = GIVEN[case]
    assert getattr(parser().parse_args(arguments), name) == value


@pytest.mark.parametrize("mistake", ["--histroy", "-x", "-5x"])
def test_what_is_no_list_of_ids_is_still_an_option(mistake: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parser().parse_args(["recommend", "a", "--history", "5", mistake])
    assert f"unrecognized arguments: {mistake}" in capsys.readouterr().err
