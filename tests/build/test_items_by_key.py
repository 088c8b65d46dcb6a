"""New items named as their source spells items: every key has one id, in all versions."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from build.catalogue import add_items, remove_items
from cli.catalogue import ids_of
from genrec.catalogue.files import CATALOGUE
from genrec.catalogue.items import Catalogue
from genrec.catalogue.keys import load_keys
from genrec.catalogue.versions import FOLDER, folder_of, versions_of
from genrec.errors import InputError
from tests.oracles.twin import twin_artifact

ITEMS, MOST = 60, np.iinfo(np.int64).max


def spelled(artifact: Path, text: str) -> None:
    """The map of an artifact's ids, as `genrec data` writes it."""
    ids = Catalogue.load(artifact / CATALOGUE).item_ids.tolist()
    keys = [text.format(item) for item in ids]
    pq.write_table(pa.table({"item_id": ids, "key": keys, "title": keys}), artifact / "items.parquet")


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    made = twin_artifact(tmp_path / "artifact", (7, 6, 5), ITEMS)
    spelled(made, "sku-{}")
    return made


def added(artifact: Path, text: str, base: int | None = None) -> Catalogue:
    """The version with the items of a file."""
    file = artifact.parent / "new.csv"
    file.write_text(text)
    return Catalogue.load(folder_of(artifact, add_items(artifact, file, base)) / CATALOGUE)


def test_a_new_key_gets_the_next_id_and_keeps_it(artifact: Path) -> None:
    old = Catalogue.load(artifact / CATALOGUE)
    like, above = old.item_ids[:2].tolist(), int(old.item_ids.max()) + 1
    first = added(artifact, f"item,title,like\nnew,a,sku-{like[0]}\n7 b,b,sku-{like[1]}\n")
    ids = [above, above + 1]
    assert first.codes[first.rows_of(np.array(ids))].tolist() == old.codes[:2].tolist()
    assert ids_of(artifact, "7 b,new").tolist() == ids[::-1]
    assert ids_of(artifact, f"sku-{like[0]}").tolist() == [like[0]]  # the map is whole
    assert remove_items(artifact, np.array(ids)) == 3
    numbered = added(artifact, f"item,title,like\n{above + 5},c,{like[0]}\n")  # ids go as before
    assert (numbered.rows_of(np.array([*ids, above + 5])) >= 0).tolist() == [False, False, True]
    again = added(artifact, f"item,title,like\nnewer,d,sku-{like[1]}\nnew,a,sku-{like[0]}\n")
    assert (again.rows_of(np.array([ids[0], above + 6])) >= 0).all() and len(again) == ITEMS + 3
    assert len(load_keys(artifact)) == ITEMS + 3
    beside = added(artifact, f"item,title,like\nnew,a,{like[0]}\n", 1)  # of another branch: the same item
    assert set(beside.item_ids.tolist()) == {*old.item_ids.tolist(), ids[0]}


def test_a_file_of_mine_where_keys_are_kept_is_not_written_over(artifact: Path) -> None:
    own = artifact / FOLDER / "items.parquet"
    own.parent.mkdir()
    like = Catalogue.load(artifact / CATALOGUE).item_ids[:1].tolist()
    pq.write_table(pa.table({"item": ["new"], "title": ["a"], "like": [f"sku-{like[0]}"]}), own)
    before = own.read_bytes()
    with pytest.raises(InputError, match=f"^{own}: has a name that {own.parent} needs: it would be written"):
        add_items(artifact, own)
    assert own.read_bytes() == before


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("item,title,like\nnew,a,sku-x\n", r"column like: line 2 has 'sku-x', which is no key"),
        ("item,title,like\nnew,a,{1}\nnew,b,{1}\n", r"column item: line 3 has 'new' again"),
        ("item,title,like\nsku-{1},a,{1}\n", r"line 2: version 1 has 'sku-{1}' already"),
        ("item,title,like\nnew,a,new\n", "column like: line 2 has 'new', which is no key"),
        ("item,title,like\na,a,{1}\nb,b,sku-{1}\n", "column like: line 2 has '{1}', an id among keys"),
        ("item,title,code_1,code_2,code_3\nnew,a,9,0,0\n", "column code_1: line 2 is 9"),
        ("item,title,code_1,code_2,code_3\nnew,a,0,0,0\n,b,0,0,0\n", "column item: line 3 is empty"),
    ],
)
def test_a_file_that_is_refused_names_nothing(artifact: Path, text: str, says: str) -> None:
    ids = Catalogue.load(artifact / CATALOGUE).item_ids
    with pytest.raises(InputError, match=says.replace("{1}", str(ids[1]))):
        added(artifact, text.replace("{1}", str(ids[1])))
    assert versions_of(artifact) == [1] and len(load_keys(artifact)) == ITEMS


def test_errors_name_items_as_they_were_given(artifact: Path) -> None:
    old = Catalogue.load(artifact / CATALOGUE)
    first, other, gone = old.item_ids[[0, 7, 9]].tolist()
    here, there = old.codes[[7, 0]].tolist()
    remove_items(artifact, np.array([first, gone]))
    given = f"item,title,like\nnew,a,sku-{other}\nsku-{first},b,sku-{other}\n"
    says = (
        f"line 3: item 'sku-{first}' has the codes {here}, those of 'sku-{other}', and {there} in version 1"
    )
    with pytest.raises(InputError, match=re.escape(says)):
        added(artifact, given)
    with pytest.raises(
        InputError, match=rf"like: line 2 is 'sku-{gone}' \(.* one of the 58 items of version 2"
    ):
        added(artifact, f"item,title,like\nnew,a,sku-{gone}\n")
    with pytest.raises(
        InputError, match=f"have 1 that version 2 lacks, the first is {gone}, whose key is 'sku-{gone}'"
    ):
        remove_items(artifact, ids_of(artifact, f"sku-{gone}"))


def test_where_ids_are_the_keys_they_stay_so(artifact: Path) -> None:
    spelled(artifact, "{}")
    with pytest.raises(InputError, match=r"column item: line 2 is new \(accepted: a whole number"):
        added(artifact, "item,title,code_1,code_2,code_3\nnew,a,0,0,0\n")


def test_no_id_is_left(artifact: Path) -> None:
    added(artifact, f"item,title,code_1,code_2,code_3\n{MOST},a,0,0,0\n")
    with pytest.raises(InputError, match=rf"items: are named by keys, and {MOST} is an id already"):
        added(artifact, "item,title,code_1,code_2,code_3\nnew,a,0,0,0\n")


def test_a_map_made_anew_takes_the_place_of_all_before(artifact: Path) -> None:
    added(artifact, "item,title,code_1,code_2,code_3\nnew,a,0,0,0\n")
    assert "new" in load_keys(artifact)["key"].to_pylist()
    spelled(artifact, "part-{}")
    assert "new" not in load_keys(artifact)["key"].to_pylist()
