"""Which ranker answers `rank`, where an artifact may have several."""

from __future__ import annotations

import json
from pathlib import Path

from genrec.errors import ArtifactError, InputError
from genrec.rank.head import has_ranker
from genrec.rank.hstu import HstuConfig, NextConfig
from genrec.target import target_of
from genrec.tensor_file import read_plain_metadata, readable
from genrec.words import command

DISCRIMINANT, NO_RANKER = "discriminant", "none"
HSTU, HSTU_NEXT = HstuConfig.kind.name, NextConfig.kind.name
_HSTU: dict[str, type[HstuConfig]] = {HSTU: HstuConfig, HSTU_NEXT: NextConfig}
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
    there = {DISCRIMINANT: has_ranker(artifact)}
    for name, of in _HSTU.items():
        there[name] = (artifact / "onnx" / f"{of.kind.graphs[1]}.onnx").is_file()
    return tuple(name for name, found in there.items() if found)


def ranker_of(artifact: Path, wanted: str = "auto") -> str:
    """One of `rankers_of`, or NO_RANKER where there is none. Raises InputError for one that is not there."""
    found = rankers_of(artifact)
    if wanted == "auto":
        return found[0] if found else NO_RANKER
    if wanted not in (*found, NO_RANKER):
        limit = (
            f"auto, {NO_RANKER}, {', '.join(found)}"
            if found
            else f"auto or {NO_RANKER}: no ranker is exported"
        )
        raise InputError("ranker", f"is {wanted}, which the artifact has not", limit)
    return wanted


def check_ranker(artifact: Path, wanted: str = "auto") -> None:
    """Raises ArtifactError, or InputError for what was wanted, where nothing ranks."""
    if ranker_of(artifact, wanted) != NO_RANKER:
        return
    if found := rankers_of(artifact):
        raise InputError("ranker", f"is {wanted}, which ranks nothing", f"auto, {', '.join(found)}")
    made = f"{command('train', artifact, '--ranker')}, {command('export', artifact)} and {command('build', artifact)}"
    raise ArtifactError(artifact / "onnx", f"has no ranker; {made} make one")


def ranks_on(target: str, ranker: str) -> bool:
    """Whether a target runs the ranker that `ranker_of` gave. Raises InputError."""
    row = target_of(target)
    return ranker != NO_RANKER and bool(row.hstu if ranker in _HSTU else row.ranker)


def hstu_of(artifact: Path, wanted: str = "auto") -> HstuConfig | None:
    """Of the HSTU ranker that answers; None where another does, or none. Raises InputError, ArtifactError.

    As it was exported: in `model/` may be one that was trained anew since, and is of another shape.
    """
    of = _HSTU.get(ranker_of(artifact, wanted))
    if of is None:
        return None
    exported = artifact / "onnx" / of.kind.exported
    with readable(exported, "safetensors file"):
        said = json.loads(read_plain_metadata(exported).get("config", "null"))
    # Exports of before do not tell
    return of.from_json(said, exported) if said else of.load(artifact / "model" / of.kind.config)


def chosen_hstu(artifact: Path, wanted: str = "auto") -> HstuConfig:
    """The same where it is known that an HSTU ranker answers: steps of one are loaded then alone."""
    config = hstu_of(artifact, wanted)
    assert config is not None
    return config
