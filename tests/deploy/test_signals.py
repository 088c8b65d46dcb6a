"""What ends a server that a person runs, and what does not."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from deploy.signals import ended_by_signals, until_interrupted

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture(autouse=True)
def ended() -> Iterator[list[int]]:
    """What would have ended the process, without a word and without cleaning."""
    found: list[int] = []

    def end(number: int, _: Any) -> None:
        found.append(number)

    former = {number: signal.signal(number, end) for number in ENDING}
    yield found
    for number, handler in former.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", ENDING)
def test_each_ends_it_once_and_not_while_it_cleans(number: signal.Signals, ended: list[int]) -> None:
    """SIGHUP is of a terminal that closes."""
    went_on = cleaned = False
    with until_interrupted():
        try:
            signal.raise_signal(number)
            went_on = True
        finally:
            for each in ENDING:
                signal.raise_signal(each)
            cleaned = True
    assert (went_on, cleaned, ended) == (False, True, [])


@pytest.mark.parametrize("number", ENDING[1:])
def test_what_is_begun_for_a_while_is_cleaned_and_ends_with_the_signal(
    number: signal.Signals, ended: list[int]
) -> None:
    cleaned = False
    with pytest.raises(SystemExit) as left, ended_by_signals():
        try:
            signal.raise_signal(number)
        finally:
            for each in ENDING[1:]:
                signal.raise_signal(each)
            cleaned = True
    assert cleaned and left.value.code == 128 + number and not ended
    signal.raise_signal(number)
    assert ended == [number], "as before"


TWICE = """
import signal, sys
from genrec import __main__ as door
from cli import main
signal.signal(signal.SIGINT, signal.default_int_handler)  # who starts the tests in the background has it ignored
class Left:
    def __del__(self):
        signal.raise_signal(signal.SIGINT)
def work(_):
    try:
        signal.raise_signal(signal.SIGINT)
    finally:
        signal.raise_signal(signal.SIGINT)
        print("cleaned")
main.VERBS["data"] = main.VERBS["data"]._replace(run=work)
left = Left()  # goes as the last, when the interpreter ends
sys.argv = ["genrec", "data", "none"]
sys.exit(door.main())
"""


def test_a_second_ctrl_c_does_not_cut_the_cleaning_of_a_command_short() -> None:
    ended = subprocess.run([sys.executable, "-c", TWICE], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (128 + signal.SIGINT, "cleaned\n", "")


def test_with_nohup_it_outlives_its_terminal() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    went_on = False
    with until_interrupted():
        signal.raise_signal(signal.SIGHUP)
        went_on = True
    assert went_on
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
