"""The arithmetic of perf.quality.decoders and perf.parts.hash_sets; no timings."""

import shutil
from pathlib import Path

import pytest

from build.catalogue import remove_items
from genrec.catalogue.items import Catalogue
from genrec.catalogue.versions import Current, point
from perf.parts.hash_sets import measure
from perf.quality.decoders import PARTS, Speed, summarise, table, validity


def seen(**ms):
    return {model: {"infer": int(value * 1e6), "calls": 2} for model, value in ms.items()}


def test_parts_of_a_request_add_up():
    models = {"prefill": 20, "decode": 60, "beam_search": 6, "validity_lookup": 2, "encode_history": 1}
    found = summarise(
        "recommend_staged", 512, [([0.05, 0.06], seen(**models)), ([0.07, 0.04], seen(**models))]
    )
    assert isinstance(found, Speed) and found.requests == 4
    assert found.parts_ms == pytest.approx({"prefill": 10, "decode": 33, "verify": 1, "system": 11})
    assert found.p50_ms == pytest.approx(55)
    fused = summarise("recommend", 512, [([0.05], seen(**models))])
    assert fused.parts_ms == {}, "what is not seen is not made up"
    assert "recommend_staged" in table([found, fused])


def test_ensembles_whose_passes_are_seen_have_the_same_parts():
    assert [list(parts) for parts in PARTS.values()] == [[], *[["prefill", "decode", "verify"]] * 2]


def test_answers_that_are_short_are_told_apart_from_those_that_are_no_items(tiny, tmp_path):
    """Of a catalogue with few items, drafts that are verified at the last level leave fewer than were asked for."""
    artifact = Path(shutil.copytree(tiny, tmp_path / "small"))
    ids = Catalogue.load(artifact / "catalogue.parquet").item_ids
    point(artifact, Current(remove_items(artifact, ids[20:])))
    found = validity(artifact, 8, requests=6, top_k=8)
    assert found["every"] == ((1, 1, 1, 6), 1)
    checked, _ = found["last"]
    assert checked[:2] == (1, 1) and checked.enough_share < 1


def test_all_ways_to_hold_the_set_agree():
    """`measure` itself refuses a peer that answers otherwise."""
    found = measure(items=3000, codebook=64, repeats=1)
    assert {"Python set", "dense bitmap", "sorted array, isin", "hash set, mapped file"} <= set(found)
    assert all(figures["bytes_per_item"] > 0 for figures in found.values())
