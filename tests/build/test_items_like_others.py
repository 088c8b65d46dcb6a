"""New items without codes of their own: they share the semantic ID of an item that they are like."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from build.catalogue import add_items
from deploy.switch import switch
from ensembles.local import LocalRecommender
from genrec.catalogue.files import CATALOGUE
from genrec.catalogue.items import Catalogue
from genrec.catalogue.versions import folder_of, versions_of
from genrec.errors import GenrecError, InputError
from tests.oracles.twin import twin_artifact

ITEMS = 60


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    return twin_artifact(tmp_path / "artifact", (7, 6, 5), ITEMS)


def added(artifact: Path, text: str) -> Catalogue:
    """The version with the items of a file."""
    file = artifact.parent / "new.csv"
    file.write_text(text)
    return Catalogue.load(folder_of(artifact, add_items(artifact, file)) / CATALOGUE)


def test_they_are_found_and_scored_as_the_others_are(artifact: Path) -> None:
    old = Catalogue.load(artifact / CATALOGUE)
    like, other = old.item_ids[[3, 40]].tolist()
    both = added(artifact, f"item,title,like\n5,new,{like}\n-6,newer,{other}\n")
    assert len(both) == ITEMS + 2
    assert both.codes[both.rows_of(np.array([5, -6]))].tolist() == old.codes[[3, 40]].tolist()
    switch(artifact, 2)
    with LocalRecommender(artifact, 64, "twin", 64) as local:
        (answer,) = local.recommend([old.item_ids[10:16].tolist()], len(both), False)
    assert not isinstance(answer, GenrecError)
    scores = dict(zip(answer["item_ids"][0].tolist(), answer["scores"][0].tolist(), strict=True))
    assert scores[5] == scores[like] and scores[-6] == scores[other]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "item,title,like,code_1,code_2,code_3\n5,a,1,0,0,0\n",
            "has the columns code_1.*no code_1: the column like names an item",
        ),
        ("item,title,code_1\n5,a,0\n", "has the columns code_1 .*code_3: .* or in their place a column like"),
        ("item,title,like\n5,a,-9\n", f"column like: line 2 is -9.*one of the {ITEMS} items of version 1"),
        ("item,title,like\n5,a,5\n", "column like: line 2 is 5.*one of the"),
        ("item,title,like\n5,a,x\n", "column like: line 2 is x.*whole number"),
    ],
)
def test_a_bad_file_is_refused_by_name(artifact: Path, text: str, says: str) -> None:
    with pytest.raises(InputError, match=rf"new\.csv.*{says}"):
        added(artifact, text)
    assert versions_of(artifact) == [1]
