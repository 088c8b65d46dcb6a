"""What tests of all models that are trained further share: the data beside a model, and an end between two files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cli.main import main
from genrec import manifest
from genrec.catalogue.items import Catalogue
from genrec.errors import ArtifactError
from training.launch import on_ranks
from training.sharded.world import World

HEAD = "user,item,timestamp\n"


def save_items(artifact: Path, codes: np.ndarray, sizes: tuple[int, ...]) -> None:
    """A catalogue of codes int[n, L], and its items: i0, i1, ... under ids from 100 on."""
    n = len(codes)
    ids, popularity = np.arange(n) + 100, np.ones(n, np.int64)
    (artifact / "model").mkdir(parents=True)
    Catalogue(ids, codes.astype(np.int32), [""] * n, popularity, sizes).save(artifact / "catalogue.parquet")
    pq.write_table(
        pa.table({"item_id": ids, "key": [f"i{number}" for number in range(n)]}), artifact / "items.parquet"
    )


def check_two_ranks(further: Callable[..., dict[str, np.ndarray]], *arguments: object) -> None:
    """They end with the weights of one."""
    alone, two = further(World(), *arguments), on_ranks(2, further, *arguments, threads=2)
    for name, values in alone.items():
        np.testing.assert_allclose(two[name], values, 2e-4, 2e-4, err_msg=name)


def check_days(
    artifact: Path, name: str, weights: str, train: list[str], files: list[Path], learnt: list[int],
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """A file after the other is learnt, once: `learnt` says how many events of each."""
    model = artifact / "model" / weights
    for number, events in enumerate(learnt, 1):
        before, command = model.read_bytes(), [*train, *map(str, files[:number])]
        assert main(command) == 0
        users, trained, anew = capsys.readouterr().out.splitlines()
        assert users == "users of the files: 1 known, 1 new, 'new' first"
        assert f"{name}: trained further" in trained and f"events {events}, users" in trained
        assert anew.endswith(f"is made anew by `genrec export {artifact}`, then `genrec build {artifact}`")
        after = model.read_bytes()
        assert main(command) == 0
        assert capsys.readouterr().out == f"{name}: has learnt {files[number - 1]}\n"
        assert before != after == model.read_bytes()
        manifest.verify(artifact)


def check_completed(
    artifact: Path, stage: str, train: list[str], capsys: pytest.CaptureFixture[str], patch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """A training `train` that is ended between model and manifest is completed by the next one."""

    def ended(partial: Path, path: Path) -> None:
        if path.name == manifest.NAME:
            raise KeyboardInterrupt
        partial.replace(path)

    with patch.context() as patched:
        patched.setattr(manifest, "put", ended)
        assert main(train) != 0
    with pytest.raises(ArtifactError, match=f"is not the file that stage `{stage}` made"):
        manifest.verify(artifact)
    assert main(train) == 0 and f": has learnt {train[-1]}" in capsys.readouterr().out
    manifest.verify(artifact)
