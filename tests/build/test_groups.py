"""Groups of items by name: made, kept over other changes of a catalogue, taken away, and refused by line."""

from __future__ import annotations

import json
import math
import shutil
import unicodedata
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from build.catalogue import add_items, remove_items
from cli.main import main
from ensembles.local import LocalRecommender, request
from genrec.catalogue.files import CATALOGUE, GROUPS
from genrec.catalogue.group_number import group_number
from genrec.catalogue.groups import Groups
from genrec.catalogue.items import Catalogue
from genrec.catalogue.keys import KEYS
from genrec.catalogue.versions import folder_of, versions_of
from genrec.errors import ArtifactError
from tests.oracles.twin import twin_artifact


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return twin_artifact(tmp_path_factory.mktemp("twin") / "artifact", (7, 6, 5), 60)


@pytest.fixture
def artifact(plain: Path, tmp_path: Path) -> Path:
    return shutil.copytree(plain, tmp_path / "artifact")


def group(artifact: Path, pairs: list[tuple[object, object]], *more: str) -> int:
    """The exit code of `genrec catalogue group` with a file of such items and groups."""
    file = artifact.parent / "groups.csv"
    file.write_text("item,group\n" + "".join(f"{item},{name}\n" for item, name in pairs))
    return main(["catalogue", "group", str(artifact), str(file), *more])


def items_by_group(artifact: Path, version: int) -> dict[str, list[int]]:
    folder = folder_of(artifact, version)
    ids = Catalogue.load(folder / CATALOGUE).item_ids
    groups = Groups.load(folder, len(ids))
    return {name: sorted(ids[rows].tolist()) for name, rows in zip(groups.names, groups.members, strict=True)}


def test_groups_stay_over_other_changes_and_are_replaced_by_name(
    artifact: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    items = Catalogue.load(artifact / CATALOGUE).item_ids.tolist()
    wanted = {"17": sorted(items[5:7]), "new in": [items[9]], "sale": sorted(items[:4])}
    pairs = [(item, name) for name, members in wanted.items() for item in [*members, members[0]]]
    assert group(artifact, pairs) == 0
    told = capsys.readouterr().out
    assert "version 2 made of version 1" in told and "grouped 3" in told
    number = group_number("sale")
    assert (
        f"groups: 17 (2 items), new in (1 item, {group_number('new in')}), sale (4 items, {number})" in told
    )
    assert items_by_group(artifact, 2) == wanted and not (artifact / GROUPS).exists()
    (artifact / "more.csv").write_text(f"item,title,like\n5,five,{items[0]}\n")
    add_items(artifact, artifact / "more.csv")
    assert items_by_group(artifact, 3) == wanted  # what is new is in none
    remove_items(artifact, np.array([items[9], items[1], items[30]]))
    wanted = {"17": wanted["17"], "new in": [], "sale": sorted({*items[:4]} - {items[1]})}
    assert items_by_group(artifact, 4) == wanted
    assert group(artifact, [(items[3], "sale"), (5, "sale"), (5, "late")]) == 0
    wanted |= {"sale": sorted([items[3], 5]), "late": [5]}
    assert items_by_group(artifact, 5) == dict(sorted(wanted.items()))
    assert main(["catalogue", "ungroup", str(artifact), f"17,{group_number('late')}"]) == 0
    assert items_by_group(artifact, 6) == {"new in": [], "sale": wanted["sale"]}
    assert main(["catalogue", "ungroup", str(artifact), "sale,new in"]) == 0
    assert items_by_group(artifact, 7) == {} and not (folder_of(artifact, 7) / GROUPS).exists()
    assert group(artifact, [(items[3], "sale")], "--base", "1") == 0
    assert items_by_group(artifact, 8) == {"sale": [items[3]]}


def test_items_are_named_by_keys_too(artifact: Path) -> None:
    items = Catalogue.load(artifact / CATALOGUE).item_ids.tolist()
    pq.write_table(pa.table([items, [f"no. {item}" for item in items]], KEYS), artifact / "items.parquet")
    assert group(artifact, [(f"no. {items[3]}", "a"), (f"no. {items[1]}", "b")]) == 0
    assert items_by_group(artifact, 2) == {"a": [items[3]], "b": [items[1]]}


@pytest.mark.parametrize("many", [1, 7, 4000])
def test_each_group_has_the_items_of_its_rows(artifact: Path, many: int) -> None:
    draw, items = np.random.default_rng(0), Catalogue.load(artifact / CATALOGUE).item_ids
    pairs = list(zip(draw.choice(items, 9000).tolist(), draw.integers(0, many, 9000).tolist(), strict=True))
    wanted: dict[str, set[int]] = {}
    for item, name in pairs:
        wanted.setdefault(f"{name}", set()).add(item)
    assert group(artifact, [*pairs]) == 0
    assert items_by_group(artifact, 2) == {name: sorted(members) for name, members in wanted.items()}


@pytest.mark.parametrize("column", ["category", "genres"])
def test_a_file_of_items_says_several_of_each(
    artifact: Path, column: str, capsys: pytest.CaptureFixture[str]
) -> None:
    items, file = Catalogue.load(artifact / CATALOGUE).item_ids.tolist(), artifact.parent / "items.csv"
    rows = {items[3]: "Drama|Sci-Fi", items[1]: "", items[4]: " Drama ", items[2]: "Sci-Fi| |War"}
    file.write_text(f"item,title,{column}\n" + "".join(f"{item},some,{of}\n" for item, of in rows.items()))
    assert main(["catalogue", "group", str(artifact), str(file)]) == 0
    wanted = {"Drama": [items[3], items[4]], "Sci-Fi": [items[3], items[2]], "War": [items[2]]}
    assert items_by_group(artifact, 2) == {name: sorted(members) for name, members in wanted.items()}
    file.write_text(f"item,{column}\n{items[3]},|\n")
    assert main(["catalogue", "group", str(artifact), str(file)]) == 2
    assert f"items.csv, column {column}: is empty" in capsys.readouterr().err


def test_genres_with_spaces_between_are_several_where_recbole_says_so(artifact: Path) -> None:
    """MovieLens, as RecBole has it. Elsewhere a space is a part of a name: of what says nothing, or of one token."""
    items = sorted(Catalogue.load(artifact / CATALOGUE).item_ids.tolist()[:3])
    of = dict(zip(items, ("Drama  War", "", "War"), strict=True))
    for version, kind in ((2, ":token_seq"), (3, ":token"), (4, "")):
        file = artifact.parent / f"{version}.item"
        file.write_text(f"item_id:token\tclass{kind}\n" + "".join(f"{item}\t{of[item]}\n" for item in items))
        assert main(["catalogue", "group", str(artifact), str(file), "--base", "1"]) == 0
        whole = {"Drama  War": [items[0]], "War": [items[2]]}
        several = {"Drama": [items[0]], "War": [items[0], items[2]]}
        assert items_by_group(artifact, version) == (several if version == 2 else whole)


def test_what_pandas_writes_for_no_category_is_none(artifact: Path) -> None:
    """A column of whole numbers with gaps is one of floats, and a gap is NaN."""
    items, file = Catalogue.load(artifact / CATALOGUE).item_ids.tolist(), artifact.parent / "items.parquet"
    categories = pa.array([3.0, math.nan, 12.0, None], from_pandas=False)
    pq.write_table(pa.table({"item": items[:4], "category": categories}), file)
    assert main(["catalogue", "group", str(artifact), str(file)]) == 0
    assert items_by_group(artifact, 2) == {"12": [items[2]], "3": [items[0]]}


def test_categories_of_json_may_be_lists_and_have_the_names_that_columns_have(artifact: Path) -> None:
    items, file = Catalogue.load(artifact / CATALOGUE).item_ids.tolist(), artifact.parent / "items.json"
    facts = [
        {"categories": ["Drama", "Sci-Fi"]}, {"category": "Drama"}, {"genre": "War|Drama", "title": None},
        {"genres": [["War"], None]}, {"title": "some"}, {"categories": []},
    ]  # fmt: skip
    file.write_text(json.dumps(dict(zip(map(str, items), facts, strict=False))))
    assert main(["catalogue", "group", str(artifact), str(file)]) == 0
    wanted = {"Drama": items[:3], "Sci-Fi": items[:1], "War": items[2:4]}
    assert items_by_group(artifact, 2) == {name: sorted(members) for name, members in wanted.items()}


def test_a_name_has_one_spelling(artifact: Path) -> None:
    """An accent may be a part of its letter or a character of its own, and nobody sees which."""
    items = sorted(Catalogue.load(artifact / CATALOGUE).item_ids.tolist())
    composed, apart = (unicodedata.normalize(form, "Comédie") for form in ("NFC", "NFD"))
    assert group(artifact, [(items[0], composed), (items[1], apart), (items[2], "Drame")]) == 0
    assert items_by_group(artifact, 2) == {composed: items[:2], "Drame": [items[2]]}
    assert group(artifact, [(items[3], apart)]) == 0
    assert items_by_group(artifact, 3) == {composed: [items[3]], "Drame": [items[2]]}
    assert main(["catalogue", "ungroup", str(artifact), apart]) == 0
    assert items_by_group(artifact, 4) == {"Drame": [items[2]]}


def test_of_many_groups_the_largest_are_shown(artifact: Path, capsys: pytest.CaptureFixture[str]) -> None:
    items = Catalogue.load(artifact / CATALOGUE).item_ids.tolist()
    pairs = [(item, name) for name in range(100, 123) for item in items[: name - 99]]
    assert group(artifact, pairs) == 0
    (line,) = [each for each in capsys.readouterr().out.splitlines() if "groups: " in each]
    assert "groups: 103 (4 items), 104 (5 items), " in line
    assert line.endswith("122 (23 items), and 3 smaller ones")


def test_what_is_no_group_is_refused_by_line(artifact: Path, capsys: pytest.CaptureFixture[str]) -> None:
    item = int(Catalogue.load(artifact / CATALOGUE).item_ids[0])
    for pairs, says in (
        ([(item, "a"), (item, " ")], r"groups.csv, column group: line 3 is empty"),
        (
            [(item, "a"), (4, "a")],
            "groups.csv, column item: line 3 is 4, which version 1 lacks (accepted: its 60",
        ),
        ([(item, "a"), ("x", "a")], "groups.csv, column item: line 3 is x"),
        ([(item, "7"), (item, "07")], "groups: '07' and '7' have one number, 7"),
        ([(item, "a"), (item, "é" * 201)], "groups.csv, column group: line 3 is 'éé"),
        ([(item, "a"), (item, "red\x1b[31m")], "control characters"),
        ([], "is empty"),
    ):
        assert group(artifact, pairs) == 2
        assert says in capsys.readouterr().err
    (artifact.parent / "groups.csv").write_text(f"item,kind\n{item},a\n")
    assert main(["catalogue", "group", str(artifact), str(artifact.parent / "groups.csv")]) == 2
    assert "group" in capsys.readouterr().err
    assert main(["catalogue", "ungroup", str(artifact), "sale"]) == 2
    assert f"group 'sale': names {group_number('sale')}, which is no group" in capsys.readouterr().err
    assert versions_of(artifact) == [1]


def test_a_damaged_file_of_groups_starts_nothing(artifact: Path) -> None:
    items = Catalogue.load(artifact / CATALOGUE).item_ids.tolist()
    assert group(artifact, [(items[3], "sale")]) == 0 and main(["catalogue", "swap", str(artifact)]) == 0
    with LocalRecommender(artifact, 8, "twin", slots=4) as local:
        asked = {**request(items[:3], 5), "only_groups": np.array([[group_number("sale")]])}
        (answer,) = local.runtime.run([asked])
        assert isinstance(answer, dict) and answer["item_ids"].tolist() == [[items[3]]]
    path = folder_of(artifact, 2) / GROUPS
    path.write_bytes(path.read_bytes()[:-1])
    assert main(["catalogue", "swap", str(artifact), "2"]) == 2
    with pytest.raises(ArtifactError, match=str(path)):
        from genrec.catalogue.versions import check_files

        check_files(artifact, 2)
