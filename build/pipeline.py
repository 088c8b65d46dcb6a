"""`genrec build`: ONNX to engines of a target, and the catalogue to its validity index."""

from __future__ import annotations

from pathlib import Path

import openvino

from build.openvino import build_openvino, kv_type_of_this_cpu
from genrec.catalogue import Catalogue
from genrec.hashset import FILE_NAME as VALID_IDS
from genrec.hashset import SemanticIdSet
from genrec.manifest import is_good, record, stage_key
from genrec.progress import ticking
from genrec.validity import FILE_NAME, ValidityIndex


def build_validity(artifact: Path) -> bool:
    """Index the catalogue, as a tree and as a hash set, unless that is done; returns whether work was done."""
    catalogue_file = artifact / "catalogue.parquet"
    key = stage_key({"files": [FILE_NAME, VALID_IDS]}, [catalogue_file])
    if is_good(artifact, "validity", key):
        return False
    with ticking("validity index"):
        catalogue = Catalogue.load(catalogue_file)
        index = ValidityIndex.build(
            catalogue.codes, catalogue.codebook_sizes, catalogue.popularity, catalogue.item_ids
        )
        index.save(artifact / FILE_NAME)
        SemanticIdSet.build(index.prefixes(index.levels)).save(artifact / VALID_IDS)
    facts = {"semantic_ids": index.node_count(index.levels), "items": len(catalogue), "bytes": index.nbytes}
    made = [artifact / FILE_NAME, artifact / VALID_IDS]
    record(artifact, "validity", key, [catalogue_file, *made], facts)
    return True


def build_engines(artifact: Path, kv_type: str = "") -> bool:
    """OpenVINO engines of the artifact's ONNX; an empty `kv_type` follows the CPU. Returns whether work was done."""
    kv_type = kv_type or kv_type_of_this_cpu()
    settings = {"kv_type": kv_type, "openvino": openvino.get_version()}
    key = stage_key(settings, sorted((artifact / "onnx").iterdir()))
    if is_good(artifact, "openvino", key):
        return False
    out = artifact / "engines" / "openvino"
    build_openvino(artifact / "onnx", out, kv_type)
    record(artifact, "openvino", key, [f for f in out.iterdir() if f.is_file()], settings)
    return True


def build_artifact(artifact: Path) -> list[str]:
    """Build what is not there yet; returns the stages that did work."""
    stages = {"validity": build_validity, "openvino": build_engines}
    return [name for name, build in stages.items() if build(artifact)]
