"""Ports of a server: those that are given, and those that are chosen beside them."""

from __future__ import annotations

import pytest

from deploy import ports
from deploy.ports import FIRST, LAST, choose_ports
from genrec.errors import InputError


class Draws:
    """Gives these numbers, one after the other."""

    def __init__(self, numbers: list[int]) -> None:
        self._left = iter(numbers)

    def randint(self, first: int, last: int) -> int:
        assert (first, last) == (FIRST, LAST)
        return next(self._left)


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Ports that somebody has; all others are free."""
    found: set[int] = set()
    monkeypatch.setattr(ports, "is_free", lambda port: port not in found)
    return found


def test_a_port_that_is_chosen_is_no_other_s(taken: set[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Not one that is given for a later door, nor that was chosen for an earlier one, nor somebody else's."""
    taken.add(20_003)
    draws = Draws([20_001, 20_003, 20_002, 20_002, 20_004])
    monkeypatch.setattr(ports.random, "SystemRandom", lambda: draws)
    found = choose_ports(metrics=20_001)
    assert (found.http, found.grpc, found.metrics) == (20_002, 20_004, 20_001)


def test_a_port_is_given_to_one_door(taken: set[int]) -> None:
    with pytest.raises(
        InputError, match=r"metrics_port: port 8000 is given twice \(accepted: three different"
    ):
        choose_ports(http=8000, metrics=8000)
    with pytest.raises(InputError, match=r"grpc_port: is 65536 \(accepted: 1 to 65535\)"):
        choose_ports(grpc=65_536)
    assert choose_ports(1, 65_535, 2).grpc == 65_535


def test_where_no_port_is_free_that_is_said(taken: set[int]) -> None:
    taken |= set(range(FIRST, LAST + 1))
    with pytest.raises(InputError, match=rf"ports: none found free in {FIRST} to {LAST}"):
        choose_ports(8000)
