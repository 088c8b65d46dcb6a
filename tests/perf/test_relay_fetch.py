"""`genrec bench relay_fetch`: its ways in turns by hand, and the command itself where there is a store."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from cli.main import main
from genrec.artifact import load_config
from perf.relay import fetch, fetch_nodes
from tests.nodes.test_mooncake import why_not


def test_prefixes_of_all_ways_are_met_alike() -> None:
    """One that is read where it lies was brought long before; no way is always first, or behind the same one."""
    done: list[tuple[str, int, int]] = []

    class Node:
        def read(self, user: int, tokens: int) -> None:
            done.append(("read", user, tokens))

        def bring(self, user: int, tokens: int) -> None:
            done.append(("bring", user, tokens))

    node: Any = Node()
    found = fetch_nodes.in_turn(node, lambda tokens: done.append(("compute", 0, tokens)), [9, 18], 6)
    assert {tokens: {way: len(ms) for way, ms in of.items()} for tokens, of in found.items()} == {
        tokens: dict.fromkeys(("local", "remote", "computed"), 6) for tokens in ("9", "18")
    }
    before, timed = done[:12], done[12:]
    assert {what for what, _, _ in before} == {"bring"}
    assert {each[1:] for each in timed if each[0] == "read"} == {each[1:] for each in before}
    brought = [user for what, user, _ in done if what == "bring"]
    assert len(set(brought)) == len(brought) == 24
    assert len({timed[turn][0] for turn in range(0, len(timed), 6)}) == 3, "each way begins a turn"


@pytest.mark.skipif(find_spec("mooncake") is not None, reason="mooncake is installed")
def test_what_fetching_needs_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "relay_fetch"]) == 2
    assert "mooncake: is not installed (accepted: pip install" in capsys.readouterr().err


@pytest.mark.parametrize("lengths", ["1", "9,2", "100000"])
def test_a_prefix_is_an_item_at_least_and_a_history_at_most(
    tiny_ranker: Path, lengths: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of what is shorter nothing is kept, so that nobody could fetch it."""
    monkeypatch.setattr(fetch, "find_spec", lambda _: "there")
    monkeypatch.setattr(fetch.shutil, "which", lambda _: "there")
    monkeypatch.setattr(fetch, "measured", lambda *_: pytest.fail("it measures"))
    assert main(["bench", "relay_fetch", str(tiny_ranker), "--lengths", lengths]) == 2
    most = load_config(tiny_ranker).max_prompt
    said = f"lengths: holds {lengths.split(',')[-1]} (accepted: 3, an item's tokens, to {most}, which "
    assert said in capsys.readouterr().err


@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_a_prefix_is_read_fetched_and_computed(tiny_ranker: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "relay_fetch", str(tiny_ranker), "--lengths", "9,18", "--repeats", "1"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert list(found["ms"]) == ["9", "18"]
    assert all(ms > 0 for of in found["ms"].values() for ms in of.values())
