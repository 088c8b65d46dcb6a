"""New catalogue versions: whole, beside the old ones, and refused with file, field and limit when they cannot be."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from build.catalogue import add_items, read_item_ids, remove_items
from build.validity import build_validity
from cli.main import main
from deploy.switch import roll_back, switch
from ensembles.local import LocalRecommender
from genrec import manifest
from genrec.catalogue.files import CATALOGUE, VALID_IDS, VALIDITY
from genrec.catalogue.items import Catalogue
from genrec.catalogue.soundness import verify
from genrec.catalogue.versions import FOLDER, folder_of, read_current, versions_of
from genrec.errors import ArtifactError, InputError
from tests.oracles.twin import twin_artifact

ROOT = Path(__file__).resolve().parents[2]
SIZES, ITEMS = (7, 6, 5), 60
NEW = "item,title,code_1,code_2,code_3\n5,five,0,1,2\n-6,six,6,5,4\n"


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return twin_artifact(tmp_path_factory.mktemp("twin") / "artifact", SIZES, ITEMS)


@pytest.fixture
def artifact(plain: Path, tmp_path: Path) -> Iterator[Path]:
    """A copy; whatever is done to its versions, no half-made one stays."""
    copy = shutil.copytree(plain, tmp_path / "artifact")
    yield copy
    if (copy / FOLDER).is_dir():
        assert {path.name for path in (copy / FOLDER).iterdir()} <= {"current.json", "2", "3", "4"}


def items_file(folder: Path, text: str) -> Path:
    path = folder / "new.csv"
    path.write_text(text)
    return path


def contents(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in (CATALOGUE, VALIDITY, VALID_IDS)}


def items_of(artifact: Path, version: int) -> Catalogue:
    return Catalogue.load(folder_of(artifact, version) / CATALOGUE)


def test_added_and_removed_items_make_versions_beside_the_one_that_is_served(
    artifact: Path, tmp_path: Path
) -> None:
    before, first = contents(artifact), items_of(artifact, 1)
    assert add_items(artifact, items_file(tmp_path, NEW)) == 2
    assert remove_items(artifact, np.array([5, first.item_ids[3]])) == 3
    assert (versions_of(artifact), read_current(artifact).version) == ([1, 2, 3], 1)
    assert contents(artifact) == before
    second, third = items_of(artifact, 2), items_of(artifact, 3)
    assert second.item_ids.tolist() == [*first.item_ids, 5, -6]
    assert second.codes[-2:].tolist() == [[0, 1, 2], [6, 5, 4]]
    assert (second.titles[-2:], second.popularity[-2:].tolist()) == (["five", "six"], [0, 0])
    assert third.item_ids.tolist() == [i for i in second.item_ids if i not in (5, first.item_ids[3])]
    assert third.titles == [second.titles[row] for row in second.rows_of(third.item_ids)]
    for version in (1, 2, 3):
        verify(artifact, version)


def test_parquet_and_csv_say_the_same(artifact: Path, tmp_path: Path) -> None:
    columns = {"item_id": [5, -6], "name": ["five", "six"], "popularity": [9, 8]}
    table = pa.table(columns | {"code_3": [2, 4], "code_2": [1, 5], "code_1": [0, 6]})
    pq.write_table(table, tmp_path / "new.parquet")
    add_items(artifact, tmp_path / "new.parquet")
    text = NEW.replace("code_3\n", "code_3,popularity\n").replace("2\n", "2,9\n").replace("4\n", "4,8\n")
    add_items(artifact, items_file(tmp_path, text), base=1)
    same = [(folder_of(artifact, version) / CATALOGUE).read_bytes() for version in (2, 3)]
    assert same[0] == same[1]
    assert items_of(artifact, 3).popularity[-2:].tolist() == [9, 8]


def test_a_version_answers_as_an_artifact_of_that_catalogue_does(
    artifact: Path, plain: Path, tmp_path: Path
) -> None:
    first = items_of(artifact, 1)
    remove_items(artifact, first.item_ids[10:30])
    add_items(artifact, items_file(tmp_path, NEW))
    switch(artifact)
    alone = shutil.copytree(plain, tmp_path / "alone")
    shutil.copy(folder_of(artifact, 3) / CATALOGUE, alone / CATALOGUE)
    build_validity(alone)
    histories = [first.item_ids[n : n + 6] for n in range(0, 50, 7)]
    with (
        LocalRecommender(artifact, 16, "twin", 16) as ours,
        LocalRecommender(alone, 16, "twin", 16) as theirs,
    ):
        for got, want in zip(
            ours.recommend(histories, 9, True), theirs.recommend(histories, 9, True), strict=True
        ):
            assert got["item_ids"].tolist() == want["item_ids"].tolist()
            assert got["scores"].tolist() == want["scores"].tolist()
            assert got["report"][0].tolist() == [*want["report"][0, :5], 3]


HEAD = "item,title,code_1,code_2,code_3\n"
REFUSED = {
    "twice in the file": (HEAD + "5,a,0,0,0\n7,b,0,0,0\n5,c,0,0,0\n", "column item: line 4 has 5 again"),
    "too few codes": ("item,title,code_1,code_2\n5,a,0,0\n", "has the columns code_1, code_2.*3 levels"),
    "too many codes": (
        "item,title,code_1,code_2,code_3,code_4\n5,a,0,0,0,0\n",
        "code_4.*accepted: columns code_1, code_2, code_3: the model has 3 levels",
    ),
    "semicolons": (
        "item;title;like\n5;a;1\n",
        "no column item.*separated by semicolons.*separated by commas",
    ),
    "no codes": ("item,title\n5,a\n", "no codes.*no column like.*accepted: columns code_1, code_2, code_3"),
    "a code too large": (HEAD + "5,a,0,0,0\n6,b,0,6,0\n", "column code_2: line 3 is 6.*0 to 5"),
    "a code below zero": (HEAD + "5,a,-1,0,0\n", "column code_1: line 2 is -1.*0 to 6"),
    "a code that is none": (HEAD + "5,a,0,0,x\n", "column code_3: line 2 is x.*0 to 4"),
    "a code left out": (HEAD + "5,a,0,,1\n", "column code_2: line 2 is empty"),
    "an item that is no number": (HEAD + "a5,a,0,0,0\n", "column item: line 2 is a5.*whole number"),
    "an item beyond int64": (HEAD + f"{2**63},a,0,0,0\n", f"column item: line 2 is {2**63}"),
    "an item that stands for none": (HEAD + f"{-(2**63)},a,0,0,0\n", f"column item: line 2 is {-(2**63)}"),
    "no titles": ("item,code_1,code_2,code_3\n5,0,0,0\n", "no column title"),
    "empty": (HEAD, "is empty"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_bad_file_is_refused_by_name(artifact: Path, tmp_path: Path, case: str) -> None:
    text, says = REFUSED[case]
    with pytest.raises(InputError, match=rf"new\.csv.*{says}"):
        add_items(artifact, items_file(tmp_path, text))
    assert versions_of(artifact) == [1]


def line(catalogue: Catalogue, row: int, codes: list[int] | None = None) -> str:
    codes = catalogue.codes[row].tolist() if codes is None else codes
    return HEAD + ",".join(map(str, [catalogue.item_ids[row], "t", *codes])) + "\n"


def test_items_that_are_there_are_refused_and_never_get_other_codes(artifact: Path, tmp_path: Path) -> None:
    first = items_of(artifact, 1)
    item, codes = int(first.item_ids[4]), first.codes[4].tolist()
    other = [(codes[0] + 1) % SIZES[0], *codes[1:]]
    with pytest.raises(InputError, match=f"column item: line 2: version 1 has {item} already"):
        add_items(artifact, items_file(tmp_path, line(first, 4)))
    changed = rf"line 2: item {item} has the codes \[{other[0]}, .* here and \[{codes[0]}, .* in version 1"
    with pytest.raises(InputError, match=changed):
        add_items(artifact, items_file(tmp_path, line(first, 4, other)))
    remove_items(artifact, first.item_ids[4:5])
    with pytest.raises(InputError, match=changed):  # it is gone, but version 1 may be served again
        add_items(artifact, items_file(tmp_path, line(first, 4, other)))
    assert add_items(artifact, items_file(tmp_path, line(first, 4))) == 3
    assert versions_of(artifact) == [1, 2, 3]


@pytest.mark.parametrize("given", ["list", "file"])
def test_unknown_items_cannot_be_removed(artifact: Path, tmp_path: Path, given: str) -> None:
    known = int(items_of(artifact, 1).item_ids[0])
    text = f"{known},7777777,-1"
    if given == "file":
        text = str(items_file(tmp_path, "item\n" + text.replace(",", "\n") + "\n"))
    with pytest.raises(
        InputError, match=r"items: have 2 that version 1 lacks, the first is 7777777 .*its 60 items"
    ):
        remove_items(artifact, read_item_ids(text))
    with pytest.raises(InputError, match="all 60 of version 1"):
        remove_items(artifact, items_of(artifact, 1).item_ids)
    assert versions_of(artifact) == [1]


def test_a_long_list_is_no_name_of_a_file() -> None:
    ids = np.arange(5000)
    np.testing.assert_array_equal(read_item_ids(",".join(map(str, ids))), ids)


@pytest.mark.parametrize("text", ["", "1,,2", "1;2", "x", "1.5", str(2**63)])
def test_a_list_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        read_item_ids(text)


def test_swaps_and_rollbacks_without_a_server(artifact: Path, tmp_path: Path) -> None:
    for base in (1, 2, 1):
        remove_items(artifact, items_of(artifact, 1).item_ids[base : base + 1], base)
    assert switch(artifact).version == 4
    assert switch(artifact, 2).version == 2
    assert switch(artifact, 2).version == 2  # again: nothing to roll back from
    assert roll_back(artifact).version == 4
    assert roll_back(artifact).version == 1
    with pytest.raises(InputError, match="nothing came before version 1"):
        roll_back(artifact)
    with pytest.raises(InputError, match=r"version: 9 is not there \(accepted: one of 1, 2, 3, 4\)"):
        switch(artifact, 9)
    with pytest.raises(InputError, match="version: 9 is not there"):
        remove_items(artifact, np.array([1]), base=9)
    shutil.rmtree(folder_of(artifact, 4))  # its number may be loaded somewhere, and is not given again
    assert remove_items(artifact, items_of(artifact, 1).item_ids[:1]) == 5
    shutil.move(folder_of(artifact, 5), folder_of(artifact, 4))


@pytest.mark.parametrize("name", [CATALOGUE, VALIDITY, VALID_IDS])
@pytest.mark.parametrize("harm", ["a bit flipped", "cut", "missing"])
def test_a_corrupt_version_is_refused_by_file_and_the_old_one_stays(
    artifact: Path, name: str, harm: str
) -> None:
    remove_items(artifact, items_of(artifact, 1).item_ids[:5])
    path = folder_of(artifact, 2) / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.unlink()
    if harm != "missing":
        path.write_bytes(data if harm == "a bit flipped" else data[:-9])
    for refused in (switch, lambda a: remove_items(a, items_of(a, 1).item_ids[9:10])):
        with pytest.raises(ArtifactError, match=str(path)):
            refused(artifact)
    assert (read_current(artifact).version, versions_of(artifact)) == (1, [1, 2])


@pytest.mark.parametrize("name", [VALIDITY, VALID_IDS])
def test_whole_files_of_another_catalogue_are_refused(artifact: Path, name: str) -> None:
    """Hashes alone would not show it: the manifest was written after the mix-up."""
    first = items_of(artifact, 1)
    for n in (2, 9):
        remove_items(artifact, first.item_ids[n : n + 1], base=1)
    folder = folder_of(artifact, 3)
    shutil.copy(folder_of(artifact, 2) / name, folder / name)
    manifest.record(folder, "validity", "", [folder / n for n in (CATALOGUE, VALIDITY, VALID_IDS)], {})
    with pytest.raises(ArtifactError, match=str(folder / name)):
        switch(artifact, 3)


def test_a_version_of_another_artifact_or_with_other_codes_is_refused(artifact: Path, tmp_path: Path) -> None:
    remove_items(artifact, items_of(artifact, 1).item_ids[:1])
    second = items_of(artifact, 2)
    codes = second.codes.copy()
    codes[7, 0] = (codes[7, 0] + 1) % SIZES[0]
    folder = folder_of(artifact, 3)
    folder.mkdir()
    Catalogue(second.item_ids, codes, second.titles, second.popularity, SIZES).save(folder / CATALOGUE)
    build_validity(folder)
    made_for = manifest.digest_file(artifact / CATALOGUE)
    manifest.record(folder, "version", made_for, [folder / CATALOGUE], {})
    with pytest.raises(ArtifactError, match=rf"item {second.item_ids[7]} has the codes .* in version 1"):
        switch(artifact, 3)
    switch(artifact, 2)
    shutil.copy(folder / CATALOGUE, artifact / CATALOGUE)  # as if semantic IDs had been trained anew
    build_validity(artifact)
    alien = r"catalogues/2: was made for another catalogue\.parquet .*--base 1 makes another version"
    for refused in (switch, lambda a, _: LocalRecommender(a, 16, "twin", 16)):
        with pytest.raises(ArtifactError, match=alien):
            refused(artifact, 2)
    assert switch(artifact, 1).version == 1
    with pytest.raises(ArtifactError, match=alien):
        roll_back(artifact)
    assert read_current(artifact).version == 1


def test_the_command_line_says_which_versions_there_are(
    artifact: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new, where = items_file(tmp_path, NEW), str(artifact)
    assert main(["catalogue", "add", where, str(new)]) == 0
    assert main(["catalogue", "remove", where, "5,-6"]) == 0
    assert main(["catalogue", "swap", where]) == 0
    assert main(["catalogue", "swap", where, "2"]) == 0
    assert main(["catalogue", "rollback", where]) == 0
    assert capsys.readouterr().out.splitlines()[-3:] == [
        "  version 1: 60 items, the artifact's own; to roll back to",
        "  version 2: 62 items, from 1, added 2",
        "  version 3: 60 items, from 2, removed 2; current",
    ]
    assert main(["catalogue", "add", where, str(new), "--base", "2"]) == 2
    assert "version 2 has 5 already" in capsys.readouterr().err
    assert main(["catalogue", "status", str(tmp_path)]) == 2
    assert "not an artifact folder" in capsys.readouterr().err
    (artifact / FOLDER / "current.json").write_text(json.dumps({"version": "x"}))
    assert main(["catalogue", "status", where]) == 2
    assert "current.json: does not name a version" in capsys.readouterr().err


def test_a_serving_machine_has_all_it_takes() -> None:
    absent = ["torch", "faiss", "onnx", "onnxscript", "onnxruntime"]
    code = f"import sys; sys.modules.update(dict.fromkeys({absent})); import build.catalogue, deploy.switch"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
