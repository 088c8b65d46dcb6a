"""Features of users: a trained ranker reads them as it has learnt them, and a damaged file is told."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cli.main import main
from genrec.catalogue.items import Catalogue
from genrec.errors import ArtifactError
from genrec.rank.user_features import load_numbers
from tests.training.hstu.test_ratings import catalogue_of, made, shop
from training.hstu.ratings import load_ratings


def test_a_model_reads_users_as_it_learnt_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also when `genrec data` has made another file of them since, with values that have no number of its."""
    artifact, recipe = shop(tmp_path, 5), tmp_path / "mine.json"
    recipe.write_text('{"recipe": "hstu-ranker", "epochs": 1}')
    assert main(["train", str(artifact), "--recipe", str(recipe)]) == 0
    catalogue, numbers = Catalogue.load(artifact / "catalogue.parquet"), load_numbers(artifact / "model")
    learnt = load_ratings(artifact, catalogue, numbers=numbers).features
    path = artifact / "users.parquet"
    table = pq.read_table(path)
    others = pa.array(
        [f"new {n}" if n < 20 else value for n, value in enumerate(table["parity"].to_pylist())]
    )
    pq.write_table(pa.table({"user_id": table["user_id"], "age": others, "parity": others}), path)
    assert load_ratings(artifact, catalogue).sizes > 20
    found = load_ratings(artifact, catalogue, numbers=numbers)
    assert found.features[:20].tolist() == [[0]] * 20 and np.array_equal(found.features[20:], learnt[20:])
    evaluate, later = ["evaluate", str(artifact), "--recipe", "hstu-ranker"], tmp_path / "later.csv"
    assert main(evaluate) == 0
    later.write_text("user,item,rating,timestamp\nuser 1,item 2,4,999999\n")
    further = ["train", str(artifact), "--recipe", "hstu-ranker", "--events", str(later)]
    path.unlink()
    anew = f"`genrec train {artifact} --recipe hstu-ranker`"
    for command in (evaluate, further):
        assert main(command) == 2
        said = f"users.parquet: is not there, and the model has learnt parity; {anew}"
        assert said in capsys.readouterr().err
    pq.write_table(table.rename_columns(["user_id", "other"]), path)
    for command in (evaluate, further):
        assert main(command) == 2
        said = f"users.parquet: has no parity, which the model has learnt; {anew}"
        assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    "table",
    [
        {"age": ["1"]},
        {"user_id": [1, None], "age": ["1", "2"]},
        {"user_id": [1, 1], "age": ["1", "2"]},
        {"user_id": ["u1"], "age": ["1"]},
        {"user_id": [1], "age": [[1]]},
        {"user_id": [1], **{f"f{n}": ["1"] for n in range(17)}},
        None,
    ],
)
def test_a_damaged_file_of_users_is_named(tmp_path: Path, table: dict[str, list[object]] | None) -> None:
    artifact, _ = made(tmp_path)
    path = artifact / "users.parquet"
    path.write_bytes(path.read_bytes()[:60])
    if table is not None:
        pq.write_table(pa.table(table), path)
    with pytest.raises(ArtifactError, match=r"users.parquet: (not a readable file of users|has 17 columns)"):
        load_ratings(artifact, catalogue_of(artifact))
