"""Engines, and what lies in `onnx/` beside the graphs that they are made of: between `genrec export` and `genrec build`
the one is of another model than the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from genrec import manifest
from genrec.artifact import engines_folder
from genrec.errors import ArtifactError
from genrec.manifest import OF
from genrec.models.registry import CONFIG
from genrec.rank.kinds import DISCRIMINANT, rankers_of
from genrec.rank.options import OPTIONS, WEIGHTS
from genrec.settings import Settings
from genrec.target import target_of

RANKER = OPTIONS, WEIGHTS
# Of `model/`, what is served of an export itself, beside engines: how they are laid out, and heads by their model.
HEADS = {"draft_beam": ("draft.json", "draft.safetensors"), "score_candidates": RANKER}


def verify_served(settings: Settings, models: Iterable[str], digest: Callable[[Path], str]) -> None:
    """`manifest.verify` and `check_engines`. Raises ArtifactError."""
    manifest.verify(settings.artifact, digest)
    check_engines(settings, models)


def check_engines(settings: Settings, models: Iterable[str]) -> None:
    """Refuse engines of an earlier export, where these models of Triton read something of the present one with them:
    a shape that is not theirs, or a head for states of other weights. Raises ArtifactError.

    Artifacts of before do not tell, and HSTU rankers hold graphs against weights.
    """
    artifact, stages = settings.artifact, manifest.read(settings.artifact)
    made_of = target_of(settings.target).made_of
    told = [stages[name]["facts"].get(OF) for name in made_of if name in stages]
    if len(told) < 2 or not all(told):
        return
    names = [CONFIG, *(name for model in models for name in HEADS.get(model, ()))]
    chosen = settings.ranker if settings.ranker != "auto" else (*rankers_of(artifact), "")[0]
    if chosen != DISCRIMINANT:
        names = [name for name in names if name not in RANKER]
    engines, exported = ({name: of.get(f"model/{name}") for name in names} for of in told)
    if changed := [f"model/{name}" for name in names if engines[name] != exported[name]]:
        problem = f"is of an earlier {', '.join(changed)} than onnx/{manifest.anew(artifact, made_of[0])}"
        raise ArtifactError(engines_folder(artifact, settings.target), problem)
