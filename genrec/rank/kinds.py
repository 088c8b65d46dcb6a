"""Which ranker answers `rank`, where an artifact may have two."""

from __future__ import annotations

from pathlib import Path

from genrec.errors import InputError
from genrec.rank.head import has_ranker
from genrec.rank.hstu import RANK_GRAPH

DISCRIMINANT, HSTU, NO_RANKER = "discriminant", "hstu", ""
# What an HSTU ranker reads of a request beside items; what of it is the user's past, and not the ranking's own; and
# steps that stand for those of the other ranker.
EVENT_INPUTS = ("ratings", "times", "now", "features")
PAST_INPUTS = ("ratings", "times", "features")
HSTU_STEPS = {
    "encode_candidates": "encode_events", "encode_prefix": "encode_events_ahead",
    "prefix_choice": "prefix_of_events", "score_candidates": "score_events",
}  # fmt: skip


def rankers_of(artifact: Path) -> tuple[str, ...]:
    """Those that are exported; the first answers where nobody chose."""
    there = {DISCRIMINANT: has_ranker(artifact), HSTU: (artifact / "onnx" / f"{RANK_GRAPH}.onnx").is_file()}
    return tuple(name for name, found in there.items() if found)


def ranker_of(artifact: Path, wanted: str = "auto") -> str:
    """DISCRIMINANT, HSTU, or NO_RANKER where there is none. Raises InputError for one that is not there."""
    found = rankers_of(artifact)
    if wanted == "auto":
        return found[0] if found else NO_RANKER
    if wanted not in found:
        limit = f"auto, {', '.join(found)}" if found else "auto: no ranker is exported"
        raise InputError("ranker", f"is {wanted}, which the artifact has not", limit)
    return wanted
