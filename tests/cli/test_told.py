"""What commands tell of answers: what of a history was read."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from cli.show import answer_lines, ranking_lines
from clients.rank_wire import Ranking
from clients.wire import Recommendation
from genrec.catalogue.files import CATALOGUE
from tests.tiny import tiny_catalogue

SCORES = np.array([-0.5, -1.25], np.float32)


def test_a_history_is_told_by_its_newest_titles_and_what_of_it_was_not_read(tmp_path: Path) -> None:
    catalogue = tiny_catalogue()
    catalogue.save(tmp_path / CATALOGUE)
    best, history = catalogue.item_ids[:2], catalogue.item_ids[10:17].tolist()
    newest = f"  last of 7: {'; '.join(f'item {each}' for each in history[2:])}"
    items = [f"  {score:8.3f}  item {item}  [{item}]" for item, score in zip(best, SCORES, strict=True)]
    for dropped, cut, said in (
        (0, 0, ""),
        (2, 1, ", 2 items dropped, not in version 1, 1 older item cut off"),
    ):
        answer = Recommendation(best, SCORES, "model", dropped, cut, 21, 2, 1)
        assert answer_lines(tmp_path, history, answer) == [newest, *items, f"  answered by model{said}"]
        ranking = Ranking(best, SCORES, "popularity", dropped, cut, cut, 1, 6, 0, 1, 0)
        there = ", KV of 1 token of the user and 6 of candidates was there"
        left_out = ", 1 candidate left out" if cut else ""
        notes = f"  ranked by popularity{said}{there}{left_out}"
        assert ranking_lines(tmp_path, history, ranking) == [newest, *items, notes]
