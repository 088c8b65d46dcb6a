"""The catalogue to its validity index. Needs nothing that a serving machine has not: a catalogue changes every hour."""

from __future__ import annotations

from pathlib import Path

from genrec.catalogue.files import CATALOGUE, VALID_IDS, VALIDITY
from genrec.catalogue.hashset import SemanticIdSet
from genrec.catalogue.items import Catalogue
from genrec.catalogue.meaning import check_meaning
from genrec.catalogue.validity import ValidityIndex
from genrec.manifest import check_inputs, is_good, making, record, stage_key, unchanged
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
