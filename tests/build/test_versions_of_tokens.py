"""Catalogue versions of an artifact whose items have tokens of their own: a row goes where its item goes."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from build.catalogue import add_items, remove_items
from cli.main import main
from deploy.switch import switch
from genrec import manifest
from genrec.artifact import load_config
from genrec.catalogue.files import CATALOGUE, ITEM_TOKENS
from genrec.catalogue.items import Catalogue
from genrec.catalogue.soundness import verify
from genrec.catalogue.versions import folder_of, versions_of
from genrec.errors import ArtifactError, InputError
from genrec.rank.item_tokens import read_item_tokens, save_item_tokens
from tests.oracles.twin import twin_artifact

SIZES, ITEMS = (7, 6, 5), 60
HEAD = "item,title,code_1,code_2,code_3"
TOKENS = np.random.default_rng(1).integers(0, sum(SIZES), (ITEMS, 2)).astype(np.int32)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    artifact = twin_artifact(tmp_path_factory.mktemp("twin") / "artifact", SIZES, ITEMS)
    save_item_tokens(artifact, TOKENS)
    return artifact


@pytest.fixture
def artifact(plain: Path, tmp_path: Path) -> Path:
    return shutil.copytree(plain, tmp_path / "artifact")


def written(artifact: Path, text: str) -> Path:
    path = artifact.with_name("new.csv")
    path.write_text(text)
    return path


def tokens_of(artifact: Path, version: int) -> dict[int, list[int]]:
    """By item id."""
    folder = folder_of(artifact, version)
    catalogue = Catalogue.load(folder / CATALOGUE)
    table = read_item_tokens(folder, len(catalogue), load_config(artifact))
    return dict(zip(catalogue.item_ids.tolist(), table.tolist(), strict=True))


def test_rows_follow_the_items(artifact: Path) -> None:
    first = tokens_of(artifact, 1)
    gone = list(first)[3::7]
    assert remove_items(artifact, np.array(gone)) == 2
    new = written(artifact, f"{HEAD},token_2,token_1\n5,five,0,1,2,11,17\n-6,six,6,5,4,0,3\n")
    assert add_items(artifact, new) == 3
    left = {item: tokens for item, tokens in first.items() if item not in gone}
    assert tokens_of(artifact, 2) == left
    assert tokens_of(artifact, 3) == left | {5: [17, 11], -6: [3, 0]}
    for version in (2, 3):
        verify(artifact, version)
        folder = folder_of(artifact, version)
        assert manifest.recorded(folder, ITEM_TOKENS) == manifest.digest_file(folder / ITEM_TOKENS)
    assert switch(artifact).version == 3


REFUSED = {
    "no tokens": (HEAD, ",0,1,2", r"new\.csv: has no tokens .*columns token_1, token_2: item_tokens.* has 2 for"),
    "too few": (HEAD + ",token_1", ",0,1,2,3", r"new\.csv: has the columns token_1 .*has 2 for an item"),
    "outside": (HEAD + ",token_1,token_2", ",0,1,2,3,18", "column token_2: line 2 is 18 .*0 to 17"),
    "left out": (HEAD + ",token_1,token_2", ",0,1,2,,4", "column token_1: line 2 is empty"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_new_items_need_tokens_of_the_vocabulary(artifact: Path, case: str) -> None:
    head, codes, says = REFUSED[case]
    with pytest.raises(InputError, match=says):
        add_items(artifact, written(artifact, f"{head}\n5,five{codes}\n"))
    assert versions_of(artifact) == [1]


def test_tokens_are_refused_where_items_have_none(artifact: Path) -> None:
    (artifact / ITEM_TOKENS).unlink()
    with pytest.raises(InputError, match=r"has the columns token_1 .*the artifact has no item_tokens"):
        add_items(artifact, written(artifact, f"{HEAD},token_1\n5,five,0,1,2,3\n"))


def test_a_version_s_table_is_held_against_its_manifest_and_the_artifact(artifact: Path) -> None:
    remove_items(artifact, np.array(list(tokens_of(artifact, 1))[:2]))
    path = folder_of(artifact, 2) / ITEM_TOKENS
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(ArtifactError, match=rf"{path}: is not the file that manifest\.json"):
        switch(artifact)
    path.write_bytes(whole)
    save_item_tokens(artifact, TOKENS[::-1])  # items have other titles now
    with pytest.raises(ArtifactError, match=r"catalogues/2: was made for another item_tokens\.safetensors"):
        switch(artifact)


def test_the_command_line_refuses_items_without_tokens(
    artifact: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["catalogue", "add", str(artifact), str(written(artifact, f"{HEAD}\n5,five,0,1,2\n"))]) == 2
    assert "has no tokens" in capsys.readouterr().err
