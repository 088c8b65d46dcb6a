"""A user of more events than a request may have, a bot say: his newest are asked about, by every command."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from cli.main import main
from cli.show import user_of
from cli.web.shelf import Shelf
from genrec.settings import MOST_VALUES
from perf.kit import traffic
from training.data.histories import Histories


@pytest.fixture(scope="module")
def artifact(tiny_ranker: Path, items: list[int], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of user 1, the bot, the newest events are those of user 2, as many as are asked about."""
    folder = shutil.copytree(tiny_ranker, tmp_path_factory.mktemp("bot") / "artifact")
    newest = np.random.default_rng(0).choice(items, MOST_VALUES)
    rows = [np.append(items[:9], newest), newest, np.array(items[:4])]
    offsets = np.cumsum([0, *map(len, rows)])
    histories = Histories(np.arange(1, 4), np.concatenate(rows), offsets, np.arange(offsets[-1]))
    histories.save(folder / "histories.parquet", ["bot", "2", "3"])
    return folder


def test_he_is_answered_as_who_did_no_more(
    artifact: Path, items: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    candidates = ",".join(map(str, items[20:30]))
    for asked in (["recommend", "--beam-width", "16"], ["rank", "--candidates", candidates]):
        said = []
        for user in ("bot", "2"):
            assert main([asked[0], str(artifact), "--user", user, *asked[1:]]) == 0
            said.append(capsys.readouterr().out)
        assert said[0] == said[1]
    assert main(["evaluate", str(artifact), "--beam-width", "16", "--json"]) == 0


def test_what_else_asks_about_him_has_his_newest_events(artifact: Path) -> None:
    one, other = (user_of(artifact, user) for user in ("bot", "2"))
    assert one.items.tolist() == other.items.tolist() and one.times is not None and other.times is not None
    assert (other.times - one.times == MOST_VALUES).all()
    shelf = Shelf(artifact)
    assert shelf.user("1")["history"] == shelf.user("2")["history"]
    lengths = sorted(map(len, traffic.histories(artifact, 3)))
    assert lengths == [3, MOST_VALUES - 1, MOST_VALUES]
