"""The catalogue to its validity index. Needs nothing that a serving machine has not: a catalogue changes every hour."""

from __future__ import annotations

from pathlib import Path

from genrec.catalogue.files import CATALOGUE, VALID_IDS, VALIDITY
from genrec.catalogue.hashset import SemanticIdSet
from genrec.catalogue.items import MEANING, Catalogue
from genrec.catalogue.validity import ValidityIndex
from genrec.errors import ArtifactError
from genrec.manifest import anew, check_inputs, is_good, making, read, record, stage_key, unchanged
from genrec.progress import ticking


def build_validity(artifact: Path) -> bool:
    """Index the catalogue, as a tree and as a hash set, unless that is done; returns whether work was done."""
    catalogue_file = artifact / CATALOGUE
    key = stage_key({"files": [VALIDITY, VALID_IDS]}, [catalogue_file])
    with making(artifact, "validity"):
        if is_good(artifact, "validity", key):
            return False
        with ticking("validity index"), unchanged([catalogue_file]):
            catalogue = Catalogue.load(catalogue_file)
            check_inputs(artifact, "tokenise")
            check_meaning(artifact)
            index = ValidityIndex.build(
                catalogue.codes, catalogue.codebook_sizes, catalogue.popularity, catalogue.item_ids
            )
            index.save(artifact / VALIDITY)
            SemanticIdSet.build(index.paths(index.levels)).save(artifact / VALID_IDS)
        facts = {
            "semantic_ids": index.node_count(index.levels),
            "items": len(catalogue),
            "bytes": index.nbytes,
        }
        made = [artifact / VALIDITY, artifact / VALID_IDS]
        record(artifact, "validity", key, [catalogue_file, *made], facts)
        return True


def check_meaning(artifact: Path, *stages: str) -> None:
    """Raises ArtifactError where a model, of these stages or of any, was trained with other semantic IDs: its answers
    would be other items.
    """
    meaning = Catalogue.load(artifact / CATALOGUE, titles=False).meaning
    for stage, entry in read(artifact).items():
        learnt = entry["facts"].get(MEANING)
        there = all((artifact / name).exists() for name in entry["outputs"])
        if learnt and there and learnt != meaning and (not stages or stage in stages):
            problem = f"has other semantic IDs than those that stage {stage!r} was trained with"
            raise ArtifactError(artifact / CATALOGUE, f"{problem}{anew(stage, entry['facts'])}")
