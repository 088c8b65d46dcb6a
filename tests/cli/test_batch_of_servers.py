"""`genrec batch --url` that goes on with what another run was answered: by the same server alone."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.csv
import pytest

from cli import batch_answers, batch_files
from cli.batch import _key
from cli.main import main, parser
from clients.client import Client
from clients.errors import Unreachable
from clients.wire import Recommendation

Answers = Callable[[Sequence[Any], Any], list[Recommendation]]


@pytest.mark.parametrize(
    ("name", "goes_on"),
    [
        ("genrec-1-22-333-00000002-aaaa-cccc", True),  # it was started again
        ("genrec-1-22-333-00000002-bbbb-cccc", False),  # another model of the same items
        ("genrec-1-22-333-00000001-aaaa-dddd", False),
    ],
)
def test_lists_of_two_servers_are_not_put_into_one_file(
    name: str,
    goes_on: bool,
    shop: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Blocks of one user; the shop has four. Each server answers every user with one item."""
    monkeypatch.setattr(batch_files, "BLOCK_USERS", 1)
    out = tmp_path / "lists.csv"

    def asked(called: str, item: int, users: int, port: int) -> int:
        @contextmanager
        def answers(_: Namespace, __: dict[str, Any]) -> Iterator[Answers]:
            left = iter(range(users))

            def answers_to(known: Sequence[Any], bar: Any) -> list[Recommendation]:
                if next(left, None) is None:
                    raise Unreachable("away")
                return [Recommendation(np.array([item]), np.zeros(1, np.float32), "model", 0, 0, 1, 1, 1)]

            yield answers_to

        monkeypatch.setattr(batch_answers, "server_answers", answers)
        monkeypatch.setattr(Client, "server_name", lambda _: called)
        return main(["batch", str(shop), "--out", str(out), "--url", f"127.0.0.1:{port}"])

    assert asked("genrec-1-22-333-00000001-aaaa-cccc", 7, 2, 1) == 2
    assert asked(name, 8, 4, 2) == 0
    assert ("goes on behind 2 users" in capsys.readouterr().err) == goes_on
    assert pyarrow.csv.read_csv(out)["item_id"].to_pylist() == ([7, 7, 8, 8] if goes_on else [8, 8, 8, 8])


def test_a_server_without_a_name_is_known_by_its_address(shop: Path) -> None:
    def key(port: int, name: str) -> str:
        url = f"127.0.0.1:{port}"
        asked = parser().parse_args(["batch", str(shop), "--out", "lists.csv", "--url", url])
        return _key(asked, {}, 4, name)

    assert key(1, "") == key(1, "") != key(2, "")
    assert key(1, "genrec-1-22-333-00000001-aaaa-cccc") == key(2, "genrec-1-22-333-00000002-aaaa-cccc")
