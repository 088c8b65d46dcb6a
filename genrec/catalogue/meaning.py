"""Which models of an artifact were trained with other semantic IDs than its catalogue has."""

from __future__ import annotations

from pathlib import Path

from genrec.catalogue.files import CATALOGUE
from genrec.catalogue.items import MEANING, Catalogue
from genrec.errors import ArtifactError
from genrec.manifest import anew, read


def check_meaning(artifact: Path, *stages: str) -> None:
    """Raises ArtifactError where a model, of these stages or of any, was trained with other semantic IDs: its answers
    would be other items.
    """
    learnt = {
        stage: entry
        for stage, entry in read(artifact).items()
        if entry["facts"].get(MEANING)
        and (not stages or stage in stages)
        and all((artifact / name).exists() for name in entry["outputs"])
    }
    meaning = Catalogue.load(artifact / CATALOGUE, titles=False).meaning if learnt else ""
    for stage, entry in learnt.items():
        if entry["facts"][MEANING] != meaning:
            problem = f"has other semantic IDs than those that stage {stage!r} was trained with"
            raise ArtifactError(artifact / CATALOGUE, f"{problem}{anew(artifact, stage, entry['facts'])}")
