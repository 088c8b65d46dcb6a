"""Ratings and users of one's own data: what `genrec data` keeps of them, and what a ranker of ratings reads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cli.main import main
from genrec.catalogue.items import Catalogue
from genrec.errors import ArtifactError, InputError
from genrec.manifest import record
from genrec.rank.hstu import HstuConfig
from training.hstu.batches import held_out_samples, tokens_of
from training.hstu.ratings import Ratings, load_ratings, usual_tasks
from training.stages import prepare

ROWS = """user,item,rating,timestamp
u2,b,3,50
u1,a,5,20
u1,b,1.0,10
u1,c,4,20
u2,a,2,40
u1,a,2,20
u3,a,5,1
u2,c,1,60
"""
USERS = "user,city,age\nu2,Ulm,56\nu1,,7\nu9,Rom,8\n"
TITLES = "item,title\na,A\nb,B\nc,C\n"


def made(
    folder: Path, rows: str = ROWS, users: str | None = USERS, suffix: str = "csv"
) -> tuple[Path, list[str]]:
    folder.mkdir(exist_ok=True)
    paths = {name: folder / f"{name}.csv" for name in ("rows", "items", "users")}
    for name, text in {"rows": rows, "items": TITLES, "users": users}.items():
        if text is not None:
            paths[name].write_text(text)
    if suffix == "parquet":
        columns = list(zip(*(line.split(",") for line in rows.split()), strict=True))
        kinds = {"rating": pa.float32(), "timestamp": pa.int64()}
        arrays = {c[0]: pa.array(c[1:]).cast(kinds.get(c[0], pa.string())) for c in columns}
        paths["rows"] = folder / "rows.parquet"
        pq.write_table(pa.table(arrays), paths["rows"])
    artifact = folder / "artifact"
    artifact.mkdir(exist_ok=True)
    given = None if users is None else paths["users"]
    return artifact, prepare(artifact, interactions=paths["rows"], items=paths["items"], users=given)


def catalogue_of(artifact: Path) -> Catalogue:
    table = pq.read_table(artifact / "items.parquet")
    codes = np.arange(len(table), dtype=np.int32)[:, None]
    ones = np.ones(len(table), np.int64)
    return Catalogue(table["item_id"].to_numpy(), codes, table["title"].to_pylist(), ones, (8,))


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_ratings_go_with_their_events(tmp_path: Path, suffix: str) -> None:
    artifact, notes = made(tmp_path / suffix, suffix=suffix)
    assert not any(note.startswith(("ratings are", "columns of")) for note in notes), notes
    table = pq.read_table(artifact / "histories.parquet").to_pylist()
    found = {row["user"]: list(zip(row["items"], row["ratings"], row["times"], strict=True)) for row in table}
    # In order of time, then of the file; the second row of the same user, item and second is none.
    assert found == {"u1": [(2, 1, 10), (1, 5, 20), (3, 4, 20)], "u2": [(1, 2, 40), (2, 3, 50), (3, 1, 60)]}
    ratings = load_ratings(artifact, catalogue_of(artifact))
    by_user = np.split(ratings.ratings, ratings.offsets[1:-1])
    assert sorted(each.tolist() for each in by_user) == [[1, 5, 4], [2, 3, 1]]
    assert ratings.levels == 5 and ratings.tasks == (4, 5)


def test_a_file_that_lacks_a_rating_is_no_good(tmp_path: Path) -> None:
    artifact, _ = made(tmp_path)
    table = pq.read_table(artifact / "histories.parquet")
    place = table.column_names.index("ratings")
    first, *others = table["ratings"].to_pylist()
    short = pa.array([first[:-1], *others], pa.list_(pa.int8()))
    pq.write_table(table.set_column(place, table.field(place), short), artifact / "histories.parquet")
    with pytest.raises(ArtifactError, match="not every item has a rating"):
        load_ratings(artifact, catalogue_of(artifact))


@pytest.mark.parametrize("bad", ["0", "101", "3.5", "", "good", "-1"])
def test_other_ratings_are_not_kept_and_the_report_says_where(tmp_path: Path, bad: str) -> None:
    """A generator needs none, so data with them are good."""
    artifact, notes = made(tmp_path, ROWS.replace("u1,c,4,", f"u1,c,{bad},"))
    said = f"ratings are not kept: {tmp_path / 'rows.csv'} line 5 has none that is a whole number, 1 to 100"
    assert said in notes
    assert "ratings" not in pq.read_schema(artifact / "histories.parquet").names
    with pytest.raises(
        InputError, match=r"has no ratings .accepted: what `genrec data` makes of interactions with"
    ):
        load_ratings(artifact, catalogue_of(artifact))


def test_features_of_users(tmp_path: Path) -> None:
    artifact, notes = made(tmp_path)
    assert f"features of users: city, age; 1 user has no row in {tmp_path / 'users.csv'}" in notes  # u3
    ratings = load_ratings(artifact, catalogue_of(artifact))
    keys = pq.read_table(artifact / "histories.parquet")["user"].to_pylist()
    found = dict(zip(keys, ratings.features.tolist(), strict=True))
    city, ages = ratings.numbers["city"], ratings.numbers["age"]
    assert found == {"u1": [0, ages["7"]], "u2": [city["Ulm"], ages["56"]]}
    assert sorted([*city.values(), *ages.values()]) == list(range(1, ratings.sizes + 1))
    with pytest.raises(InputError, match=r"users.parquet: is none of `genrec data`, which would remove it"):
        made(tmp_path, users=None)
    record(artifact, "data", "as made", [artifact / "users.parquet"], {})
    assert made(tmp_path, users=None)[1] and not (artifact / "users.parquet").exists(), "of former data"
    assert load_ratings(artifact, catalogue_of(artifact)).features.shape == (2, 0)


def test_a_feature_that_is_unknown_is_no_token(tmp_path: Path) -> None:
    artifact, _ = made(tmp_path)
    ratings = load_ratings(artifact, catalogue_of(artifact))
    keys = pq.read_table(artifact / "histories.parquet")["user"].to_pylist()
    for user, wanted in {"u1": 1, "u2": 2}.items():
        (sample,) = held_out_samples(ratings, np.array([keys.index(user)]), 0, 8)
        assert int((tokens_of(ratings, [sample]).feature > 0).sum()) == wanted


@pytest.mark.parametrize(
    ("users", "problem"),
    [
        ("user,city\nu1,a\nu1,b\n", "has the user 'u1' twice .accepted: every user once"),
        ("user\nu1\n", "has 0 columns beside user .accepted: 1 to 16, a feature each"),
        ("user," + ",".join(f"f{n}" for n in range(17)) + "\nu1" + ",1" * 17, "has 17 columns beside user"),
        ("name,city\nu1,a\n", "has no column user or user_id"),
        ("user,user_id,city\nu1,1,a\n", "column user_id: is beside column user, which names the users"),
        ("user,city\n u1,a\n2,b\n", "names no user of the interactions: its first is ' u1', theirs 'u2'"),
        (
            "user,city\n" + "".join(f"u{n},{n}\n" for n in range(1001)),
            "column city: has 1001 distinct values",
        ),
    ],
)
def test_bad_users_are_refused(tmp_path: Path, users: str, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        made(tmp_path, users=users)
    assert not (tmp_path / "artifact" / "users.parquet").exists()


def test_users_are_read_before_all_else(tmp_path: Path) -> None:
    """Interactions may take hours."""
    missing = "users.csv: does not exist .accepted: a CSV, TSV or Parquet file"
    (tmp_path / "rows.csv").write_text("user,item,timestamp\nu1,a,never\n")
    (tmp_path / "items.csv").write_text(TITLES)
    given = {"interactions": tmp_path / "rows.csv", "items": tmp_path / "items.csv"}
    for users, problem in {None: missing, "user\nu1\n": "has 0 columns beside user"}.items():
        if users is not None:
            (tmp_path / "users.csv").write_text(users)
        with pytest.raises(InputError, match=problem):
            prepare(tmp_path / "artifact", **given, users=tmp_path / "users.csv")


def test_ratings_that_are_there_twice_are_refused(tmp_path: Path) -> None:
    rows = "\n".join(f"{line},{line.split(',')[2]}" for line in ROWS.split())
    with pytest.raises(InputError, match=r"column rating: is there 2 times .accepted: every column once"):
        made(tmp_path, rows)


def test_later_files_add_what_is_new(tmp_path: Path) -> None:
    artifact, _ = made(tmp_path)
    catalogue = catalogue_of(artifact)
    keys = pq.read_table(artifact / "histories.parquet")["user"].to_pylist()
    later, again = tmp_path / "later.csv", tmp_path / "again.csv"
    later.write_text(
        "user,item,rating,timestamp\nu2,c,4,1700000000500\nu2,b,4,1700000001500\nu7,b,4,1700000000000\n"
    )
    again.write_text("user,item,rating,timestamp\nu2,a,5,40\nu2,b,4,1700000001\nu2,a,1,1700000002\n")
    more = load_ratings(artifact, catalogue, [later, again])
    mine = more.users_of(np.arange(len(more.items))) == keys.index("u2")
    assert more.times[mine].tolist() == [40, 50, 60, 1700000000, 1700000001, 1700000002], "of milliseconds"
    assert more.ratings[mine].tolist() == [2, 3, 1, 4, 4, 1]
    assert more.file[mine].tolist() == [0, 0, 0, 1, 1, 2], "what was there already is not new"
    assert len(more) == 3 and more.features[2].tolist() == [0, 0]
    for bad, problem in {
        "u1,a,5.5,1": "column rating: line 2 is '5.5' .accepted: whole numbers, 1 to 5",
        "u1,a,6,1": "column rating: line 2 is '6' .accepted: whole numbers, 1 to 5",
        "u1,z,5,1": "has 1 event of unknown items: line 2 has .z. .accepted: items of",
    }.items():
        later.write_text(f"user,item,rating,timestamp\n{bad}\n")
        with pytest.raises(InputError, match=problem):
            load_ratings(artifact, catalogue, [later])


def test_of_short_histories_half_is_held_out() -> None:
    lengths = np.array([1, 2, 5, 19, 20, 60])
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    n = int(offsets[-1])
    ratings = Ratings(
        offsets, np.arange(n), np.ones(n, np.int64), np.arange(n), np.zeros((6, 0), np.int64), 0
    )
    assert ratings.held.tolist() == [0, 1, 2, 9, 10, 10]
    tested = held_out_samples(ratings, np.arange(6), 0, 16)
    assert np.array_equal(np.concatenate([each.asked for each in tested]), np.flatnonzero(ratings.held_out))
    before = held_out_samples(ratings, np.arange(1, 6), ratings.held[1:], 16)
    assert [len(each.asked) for each in before] == [1, 5, 5, 10]
    assert all(
        each.asked[-1] + 1 == ratings.offsets[each.user + 1] - ratings.held[each.user] for each in before
    )


@pytest.mark.parametrize(("levels", "wanted"), [(1, (1,)), (2, (2,)), (3, (3,)), (5, (4, 5)), (10, (8, 10))])
def test_usual_tasks(levels: int, wanted: tuple[int, ...]) -> None:
    assert usual_tasks(levels) == wanted


def shop(folder: Path, levels: int) -> Path:
    """Users who like even items, or odd ones."""
    rng = np.random.default_rng(0)
    rows = ["user,item,rating,timestamp"]
    for user in range(40):
        for n, item in enumerate(rng.permutation(24)[:12]):
            likes = item % 2 == user % 2
            rating = rng.integers(levels // 2 + 2, levels + 1) if likes else rng.integers(1, levels // 2 + 1)
            rows.append(f"user {user},item {item},{rating},{1000 * n + user}")
    artifact = folder / "artifact"
    (folder / "rows.csv").write_text("\n".join(rows))
    (folder / "items.csv").write_text("item,title\n" + "".join(f"item {n},thing {n}\n" for n in range(24)))
    (folder / "users.csv").write_text("user,parity\n" + "".join(f"user {n},{n % 2}\n" for n in range(40)))
    given = [f"--{name}={folder / name}.csv" for name in ("interactions", "items", "users")]
    given[0] = f"--interactions={folder / 'rows.csv'}"
    assert main(["data", str(artifact), *given, "--codebook-sizes", "4,4"]) == 0
    return artifact


def test_a_ranker_of_own_ratings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Ratings to ten, features of one's own, tasks that the recipe names, from the command line."""
    artifact, recipe = shop(tmp_path, 10), tmp_path / "mine.json"
    recipe.write_text('{"recipe": "hstu-ranker", "epochs": 2, "tasks": [6]}')
    assert main(["train", str(artifact), "--recipe", str(recipe)]) == 0
    config = HstuConfig.load(artifact / "model" / "hstu.json")
    assert (config.ratings, config.tasks, config.features) == (10, (6,), 2)
    capsys.readouterr()
    assert main(["evaluate", str(artifact), "--recipe", "hstu-ranker"]) == 0
    assert "GAUC r>=6" in capsys.readouterr().out
    for tasks, problem in {
        "[1]": "tasks: has 1, where ratings are 1 to 10",
        "[11]": "tasks: has 11, where ratings are",
        "[6, 6]": "tasks: are [6, 6]",
        "6": "recipe, tasks: is 6 (accepted: a list of whole numbers)",
        "[0.5]": "recipe, tasks: is [0.5] (accepted: a list of whole numbers)",
    }.items():
        recipe.write_text(f'{{"recipe": "hstu-ranker", "tasks": {tasks}}}')
        assert main(["train", str(artifact), "--recipe", str(recipe)]) == 2
        assert problem in capsys.readouterr().err


def test_too_few_ratings_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Three users with three: nobody has one that could be held out for validation."""
    artifact, _ = made(tmp_path, ROWS.replace("u3,a,5,1", "u3,a,5,1\nu3,b,5,2\nu3,c,5,3"))
    catalogue_of(artifact).save(artifact / "catalogue.parquet")
    assert main(["train", str(artifact), "--recipe", "hstu-ranker"]) == 2
    said = "ratings: have no user with one of 4 or more and a lower one among those held out"
    assert said in capsys.readouterr().err


def test_data_without_ratings_cannot_train_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = "".join(line.rsplit(",", 2)[0] + "," + line.rsplit(",", 1)[1] + "\n" for line in ROWS.split())
    artifact, _ = made(tmp_path, rows)
    catalogue_of(artifact).save(artifact / "catalogue.parquet")
    for verb in ("train", "evaluate"):
        assert main([verb, str(artifact), "--recipe", "hstu-ranker"]) == 2
        assert (
            "histories.parquet: has no ratings (accepted: what `genrec data` makes" in capsys.readouterr().err
        )
