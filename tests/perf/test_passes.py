"""What a pass need not score, measured on the tiny artifact: every way gives the answers of all beams."""

from __future__ import annotations

from pathlib import Path

from perf.parts.passes import ALL, measure, table


def test_every_way_gives_the_answers_of_all_beams(tiny: Path) -> None:
    seen = measure(tiny, 64, [5, 100], requests=4, rounds=2)
    assert list(seen) == [ALL, "best 5", "best 64"], "100 of 64 beams cannot be asked for"
    figures = {way: each.figures() for way, each in seen.items()}
    assert all(f["same"] == f["requests"] == 8 and f["score_difference"] < 1e-4 for f in figures.values())
    assert figures["best 5"]["beams"] <= figures["best 64"]["beams"] <= figures[ALL]["beams"]
    assert figures[ALL]["score_difference"] == 0 < figures["best 5"]["p50_ms"]
    assert len(table(figures).splitlines()) == 4
