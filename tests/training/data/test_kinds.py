"""What a file holds is told where its name says something else."""

from __future__ import annotations

from pathlib import Path

import pytest

from genrec.errors import InputError
from training.data.interactions import read_interactions
from training.stages import prepare


@pytest.mark.parametrize("separator", ["\t", ",", ";", " "])
@pytest.mark.parametrize("header", ["user,item,timestamp", "user_id:token,item_id:token", '"item","user"'])
def test_a_table_is_no_sequence_of_the_user_user(tmp_path: Path, header: str, separator: str) -> None:
    path = tmp_path / "i.txt"
    path.write_text(f"{header}\nu,a,1\nv,b,2\n".replace(",", separator))
    with pytest.raises(
        InputError, match=r"i\.txt: begins with the header of a table, .*events as CSV, TSV or P"
    ):
        list(read_interactions(path))
    path.write_text("user date items\nitem name time\n")
    (block,) = read_interactions(path)
    assert block["user"].to_pylist() == ["user", "user", "item", "item"]


def test_a_folder_of_parts_needs_ray(tmp_path: Path) -> None:
    """As Spark writes them."""
    (tmp_path / "seen.parquet").mkdir()
    (tmp_path / "seen.parquet/part-0.csv").write_text("user,item,timestamp\nu,a,1\n")
    (tmp_path / "items.csv").write_text("item,title\na,A\n")
    with pytest.raises(
        InputError, match=r"seen\.parquet: is a folder \(accepted: .*; a folder of them with --ray"
    ):
        prepare(tmp_path / "a", interactions=tmp_path / "seen.parquet", items=tmp_path / "items.csv")
    assert not (tmp_path / "a").exists()
