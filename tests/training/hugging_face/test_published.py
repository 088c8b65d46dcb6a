"""MiniOneRec's published items, semantic IDs and test histories, under a small model of random weights."""

from __future__ import annotations

import ast
import csv
import json
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch

from genrec.catalogue.items import Catalogue
from genrec.models.prompt import prompt_of
from genrec.nn.checkpoint import load_generator
from training.generator.recommend import model_recommender
from training.hugging_face.checkpoint import import_checkpoint

transformers = pytest.importorskip("transformers", reason="compares with transformers where it is installed")

from tests.training.hugging_face.layouts import LAYOUTS, save_checkpoint, their_beams  # noqa: E402

SHARED = Path(__file__).parents[4] / "shared" / "data" / "minionerec-industrial-partial"
ASKED, WIDTH = 6, 10


@pytest.fixture(scope="module")
def asked():
    """Published test histories: lists of item ids, oldest first."""
    if not SHARED.is_dir():
        pytest.skip("MiniOneRec's data are not at ../shared/data/minionerec-industrial-partial")
    csv.field_size_limit(1 << 20)
    with (SHARED / "test.csv").open() as file:
        return [ast.literal_eval(row["history_item_id"]) for row in islice(csv.DictReader(file), ASKED)]


def test_published_histories_are_answered_as_transformers_does(asked, tmp_path):
    layout = LAYOUTS["minionerec"]
    given = {name: SHARED / f"Industrial_and_Scientific.{kind}.json"
             for name, kind in (("items", "item"), ("semantic_ids", "index"))}  # fmt: skip
    items = json.loads(given["semantic_ids"].read_text())
    save_checkpoint(layout, items, tmp_path / "checkpoint")
    (tmp_path / "prompt.json").write_text(json.dumps(layout.prompt))
    import_checkpoint(
        tmp_path / "checkpoint", tmp_path / "a", **given, prompt=tmp_path / "prompt.json", max_history=10
    )
    catalogue, generator = (
        Catalogue.load(tmp_path / "a" / "catalogue.parquet"),
        load_generator(tmp_path / "a/model"),
    )
    assert len(catalogue) == len(items) == 3686 and len(np.unique(catalogue.codes, axis=0)) == 3670
    assert catalogue.titles[0].startswith("SUPCO SPP6 Relay/Capacitor")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "checkpoint")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "checkpoint", dtype=torch.float32
    ).eval()
    recommend = model_recommender(generator, catalogue, WIDTH)
    for history in asked:
        rows = catalogue.rows_of(history)
        mine = prompt_of(generator.config, catalogue.codes[rows] + np.array(generator.config.code_offsets))
        prompt = tokenizer(layout.text(items, [str(key) for key in history])).input_ids
        assert len(mine) == len(prompt)
        want = their_beams(
            theirs, prompt, [tokenizer.convert_tokens_to_ids(item) for item in items.values()], WIDTH
        )
        (ranking,) = recommend([np.array(history)], WIDTH, False)
        paths = [tuple(tokenizer.convert_tokens_to_ids(items[str(item)])) for item in ranking.tolist()]
        found = list(dict.fromkeys(paths))
        assert found == sorted(want, key=want.get, reverse=True)[: len(found)]
