"""Titles of the page follow the catalogue that is served."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from build.catalogue import add_items
from build.groups import group_items
from cli.catalogue import status_lines
from cli.web import shelf as shelves
from cli.web.shelf import Shelf
from genrec.catalogue.files import CATALOGUE
from genrec.catalogue.items import Catalogue
from genrec.catalogue.typed import split_names
from genrec.catalogue.versions import point, read_current
from genrec.errors import InputError
from tests.oracles.twin import twin_artifact
from training.data.histories import Histories


def test_items_that_a_swap_brings_are_found(shop: Path, items: list[int], tmp_path: Path) -> None:
    artifact = shutil.copytree(shop, tmp_path / "artifact")
    shelf, new = Shelf(artifact), tmp_path / "new.csv"
    new.write_text(f"item,title,like\n{max(items) + 1},Brand new,{items[0]}\n")
    version = add_items(artifact, new)
    assert shelf.search("brand") == [], "it is not served yet"
    point(artifact, read_current(artifact).to(version))
    assert shelf.search("brand") == [{"id": str(max(items) + 1), "title": "Brand new"}]
    point(artifact, read_current(artifact).back())
    assert shelf.search("brand") == []


def test_a_history_is_named_by_one_look_at_what_is_served(
    shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look reads the manifests of versions: one for each of a bot's events took seconds, and might see a swap."""
    shelf, looks = Shelf(shop), []
    monkeypatch.setattr(shelves, "read_current", lambda artifact: looks.append(1) or read_current(artifact))
    assert len(shelf.user("20")["history"]) == 5 and len(looks) == 1


def test_a_user_is_found_by_his_name_as_by_his_id(shop: Path, items: list[int], tmp_path: Path) -> None:
    """Names of digits are names: 007 is nobody's id."""
    artifact = shutil.copytree(shop, tmp_path / "artifact")
    offsets = np.arange(4) * 3
    Histories(np.arange(1, 4), np.array(items[:9]), offsets).save(
        artifact / "histories.parquet", ["anna", "1", "007"]
    )
    shelf = Shelf(artifact)
    assert [shelf.user(name)["user"] for name in ("anna", "007", "1", "2", "3")] == ["1", "3", "1", "2", "3"]
    for nobody in ("02", "Anna", "٢", "-0"):
        with pytest.raises(InputError, match=rf"user: {nobody} is not in the data \(accepted: .*, as anna\)"):
            shelf.user(nobody)


def test_groups_are_shown_as_they_are_typed(shop: Path, items: list[int], tmp_path: Path) -> None:
    """A name with a comma would be two names."""
    artifact, names = shutil.copytree(shop, tmp_path / "artifact"), ['2" nails', "salt, pepper", "tea"]
    file = tmp_path / "groups.csv"
    quoted = (name.replace('"', '""') for name in names)
    file.write_text("item,group\n" + "".join(f'{items[0]},"{name}"\n' for name in quoted))
    version = group_items(artifact, file, np.array(items[:1] * 3))
    point(artifact, read_current(artifact).to(version))
    assert split_names(",".join(Shelf(artifact).groups), "only_groups") == names
    (told,) = (line for line in status_lines(artifact) if "groups: " in line)
    shown = told.partition("groups: ")[2]
    assert split_names(re.sub(r" \(1 item, \d+\)", "", shown), "only_groups") == names


def test_titles_of_a_catalogue_that_was_are_not_found(tmp_path: Path) -> None:
    """`genrec data` has made another since: servers refuse the versions of then, whose ids may be other items now."""
    artifact, new = twin_artifact(tmp_path / "artifact", (7, 6, 5), 60), tmp_path / "new.csv"
    was = Catalogue.load(artifact / CATALOGUE)
    new.write_text(f"item,title,like\n{was.item_ids.max() + 1},Brand new,{was.item_ids[0]}\n")
    point(artifact, read_current(artifact).to(add_items(artifact, new)))
    shelf = Shelf(artifact)
    assert len(shelf.search("brand")) == 1 and shelf.items == 61
    Catalogue(was.item_ids, was.codes, ["Other"] * 60, was.popularity, was.codebook_sizes).save(
        artifact / CATALOGUE
    )
    shelf = Shelf(artifact)
    assert shelf.search("brand") == [] and shelf.search("other") and shelf.items == 60
