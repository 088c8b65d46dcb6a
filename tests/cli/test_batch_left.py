"""What `genrec batch` does with answers that another run has left."""

from __future__ import annotations

import os
import shutil
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from build.catalogue import remove_items
from cli import batch_files
from cli.main import main
from clients.wire import Recommendation
from genrec.catalogue.files import CATALOGUE
from genrec.catalogue.items import Catalogue
from genrec.catalogue.keys import load_keys


@pytest.mark.parametrize("inner", ["", "catalogues/2"])
def test_lists_are_not_written_over_a_file_of_the_artifact(
    inner: str, shop: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    artifact = Path(shutil.copytree(shop, tmp_path / "artifact"))
    remove_items(artifact, Catalogue.load(artifact / CATALOGUE).item_ids[:1])
    own = artifact / inner / CATALOGUE
    before = own.read_bytes()
    assert main(["batch", str(artifact), "--out", str(own), "--beam-width", "32"]) == 2
    assert f"out: is {str(own)!r}, a file of the artifact" in capsys.readouterr().err
    assert own.read_bytes() == before and not own.with_name(f"{CATALOGUE}.parts").exists()


def test_a_run_that_fails_at_once_leaves_what_another_was_answered(
    shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whose options are mistyped may go on after all."""
    monkeypatch.setattr(batch_files, "BLOCK_USERS", 1)
    out, keys = tmp_path / "lists.csv", load_keys(shop)
    with pytest.raises(KeyboardInterrupt), batch_files.writing(out, keys, "of hours") as lists:
        for block in islice(batch_files.blocks_of(shop), 2):
            lists.write(
                block, [Recommendation(np.array([7]), np.zeros(1, np.float32), "model", 0, 0, 1, 1, 1)]
            )
        raise KeyboardInterrupt
    assert main(["batch", str(shop), "--out", str(out), "--beam-width", "32", "--top-k", "33"]) == 2
    assert "top_k: is 33" in capsys.readouterr().err
    with batch_files.writing(out, keys, "of hours") as lists:
        assert lists.blocks == 2
    assert pyarrow.csv.read_csv(out)["item_id"].to_pylist() == [7, 7] and list(tmp_path.iterdir()) == [out]


def test_lists_of_a_version_that_was_taken_back_are_made_anew(
    shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A swap while the command ran, its end, a rollback, and the same command. Blocks of one user, of four."""
    monkeypatch.setattr(batch_files, "BLOCK_USERS", 1)
    out, keys = tmp_path / "lists.parquet", load_keys(shop)

    def answer(lists: batch_files.Lists, *versions: int) -> None:
        for version, block in zip(versions, batch_files.blocks_of(shop, lists.blocks), strict=False):
            items, scores = np.array([version]), np.zeros(1, np.float32)
            lists.write(block, [Recommendation(items, scores, "model", 0, 0, 1, 1, version)])

    with pytest.raises(KeyboardInterrupt), batch_files.writing(out, keys, "of version 1") as lists:
        answer(lists, 1, 1, 2)
        raise KeyboardInterrupt
    with batch_files.writing(out, keys, "of version 1") as lists:
        assert lists.blocks == 2
        answer(lists, 1, 1)
    assert pq.read_table(out)["item_id"].to_pylist() == [1, 1, 1, 1] and lists.versions == {1}


def test_lists_may_have_a_name_as_long_as_a_file_may_have_one(shop: Path, tmp_path: Path) -> None:
    """A lock has a name of its own, which may be 107 bytes long."""
    out = tmp_path / f"{'l' * 240}.csv"
    assert main(["batch", str(shop), "--out", str(out), "--beam-width", "32"]) == 0
    assert list(tmp_path.iterdir()) == [out]


def test_a_run_that_is_ended_while_it_clears_up_is_known_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever file it was at: a folder that nothing says whose it is would be refused from then on."""
    out, keys, nobody = tmp_path / "lists.csv", pa.table({}), batch_files.NOBODY
    unlink, left = os.unlink, 0

    def ended(*given: Any, **more: Any) -> None:
        nonlocal left
        left -= 1
        if not left:
            raise SystemExit(143)
        unlink(*given, **more)

    for files in range(1, 7):
        with pytest.raises(SystemExit), batch_files.writing(out, keys, "of yesterday") as lists:
            while lists.blocks < 5:
                lists.write(nobody, [])
            left = files
            monkeypatch.setattr(os, "unlink", ended)
            monkeypatch.setattr(Path, "unlink", ended)  # Python 3.10's has an `os.unlink` of its own
        monkeypatch.undo()
        with batch_files.writing(out, keys, "of today"):
            pass
        assert list(tmp_path.iterdir()) == [out]
