"""Experts by the recipe: trained, measured, and trained further."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from cli.main import main
from genrec.catalogue.items import Catalogue
from genrec.nn.experts import Experts
from genrec.nn.hstu_checkpoint import load_hstu
from tests.training.hstu.test_hstu_further import with_ratings


@pytest.fixture
def artifact(tiny: Path, tmp_path: Path) -> Path:
    """Without an HSTU ranker, of three users of 60 ratings."""
    return with_ratings(Path(shutil.copytree(tiny, tmp_path / "artifact")), 60)


def recipe(folder: Path, **settings: int) -> str:
    path = folder / "mine.json"
    path.write_text(json.dumps({"recipe": "hstu-ranker", **settings}))
    return str(path)


def test_from_a_recipe_to_a_model_that_is_trained_further(
    artifact: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train = ["train", str(artifact), "--recipe"]
    assert main([*train, recipe(artifact.parent, experts=4, epochs=2, tokens=60)]) == 0
    first = load_hstu(artifact / "model")
    assert first.config.experts == 4 and isinstance(first.head, Experts) and first.head.shape == (2, 4)
    assert main(["evaluate", str(artifact), "--recipe", "hstu-ranker", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert figures["model"] != figures["item rates"]  # all of 0.5: an item held out has no other ratings
    events, item = artifact.parent / "events.csv", Catalogue.load(artifact / "catalogue.parquet").item_ids[7]
    events.write_text(f"user,item,rating,timestamp\na,{item},5,100\n")
    further = ["--events", str(events)]
    assert main([*train, recipe(artifact.parent, experts=3), *further]) == 2
    assert "experts: is 3, the model has 4 (accepted: what the model has, or not" in capsys.readouterr().err
    assert main([*train, "hstu-ranker", *further]) == 0
    after = load_hstu(artifact / "model").state_dict()
    moved = {name for name, each in first.state_dict().items() if not np.array_equal(each, after[name])}
    assert {"head.experts.weight", "head.gates.weight", "head.towers.0.0.weight"} <= moved
