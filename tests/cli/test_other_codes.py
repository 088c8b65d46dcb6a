"""A model and a catalogue whose semantic IDs it has not learnt."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from build.validity import build_validity
from cli.chain import How, make_catalogue, make_data, make_model
from cli.main import main
from genrec.catalogue.files import CATALOGUE
from genrec.catalogue.items import MEANING, Catalogue
from genrec.errors import ArtifactError
from genrec.manifest import OF, read, record, recorded
from training.generator import draft
from training.stages import CODEBOOKS


@pytest.fixture
def trained(tiny: Path, tmp_path: Path) -> Path:
    artifact = tmp_path / "artifact"
    shutil.copytree(tiny, artifact)
    facts = {MEANING: Catalogue.load(artifact / CATALOGUE).meaning}
    record(artifact, "train", "key", [artifact / "model" / "config.json"], facts)
    return artifact


def test_titles_and_the_order_of_items_mean_nothing(trained: Path) -> None:
    old = Catalogue.load(trained / CATALOGUE)
    other = Catalogue(
        old.item_ids[::-1], old.codes[::-1], ["other"] * len(old), old.popularity + 1, old.codebook_sizes
    )
    assert other.meaning == old.meaning
    other.save(trained / CATALOGUE)
    assert build_validity(trained)


def test_a_catalogue_that_the_model_has_not_learnt_is_not_built(trained: Path) -> None:
    """As `genrec data` makes one of newer events; codebooks of the same sizes would be served without a word."""
    old = Catalogue.load(trained / CATALOGUE)
    replace(old, codes=old.codes[::-1]).save(trained / CATALOGUE)
    with pytest.raises(
        ArtifactError, match=rf"catalogue.parquet: has other semantic IDs.*'train'.*`genrec train {trained}`"
    ):
        build_validity(trained)
    (trained / "model" / "config.json").unlink()
    assert build_validity(trained), "without the model nothing stands against it"


def test_a_training_says_what_it_has_learnt(tmp_path: Path) -> None:
    events, items = tmp_path / "events.csv", tmp_path / "items.csv"
    rows = [f"{user},{(user * 7 + n) % 30},{n}" for user in range(60) for n in range(6)]
    events.write_text("user_id,item_id,timestamp\n" + "\n".join(rows) + "\n")
    items.write_text("item_id,title\n" + "".join(f"{n},title {n}\n" for n in range(30)))
    artifact = tmp_path / "artifact"
    make_data(artifact, None, events, items)
    make_catalogue(artifact, (4, 4, 4))
    make_model(artifact, how=How(minutes=0.01))
    assert read(artifact)["train"]["facts"][MEANING] == Catalogue.load(artifact / CATALOGUE).meaning


def test_a_training_is_of_the_codebooks_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It begins at them, and genres, say, change them while items keep published semantic IDs."""
    artifact, recipe = tmp_path / "artifact", tmp_path / "mine.json"
    recipe.write_text('{"recipe": "generator", "epochs": 1, "hidden_size": 16, "num_hidden_layers": 1}')
    train, books = ["train", str(artifact), "--recipe", str(recipe)], []
    for genre in "ab":
        data = ["data", str(artifact), *published(tmp_path, genre)]
        for says in ("done", "still good"):
            assert main(data) == main(train) == 0
            assert f"train: {says}" in capsys.readouterr().out
        books.append((artifact / CODEBOOKS).read_bytes())
        assert Catalogue.load(artifact / CATALOGUE).codes.tolist() == [[n, 0] for n in range(9)]
    assert books[0] != books[1]
    (artifact / CODEBOOKS).write_bytes(books[0])  # as a kill leaves one of two files
    assert main(train) == 2
    said = f"{CODEBOOKS}: is not the file that stage `tokenise` made; `genrec data {artifact}` makes it anew"
    assert said in capsys.readouterr().err


def test_a_training_without_memory_names_what_takes_less(
    trained: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draft, "draft_artifact", lambda *given: torch.empty(2**50))
    (trained / "histories.parquet").touch()
    assert main(["train", str(trained), "--draft", "alone"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("genrec train: memory: is not enough: ") and "can't allocate memory" in line
    assert line.endswith("; a recipe file with a smaller batch_items takes less")


def published(folder: Path, genre: str) -> list[str]:
    """Options of `genrec data` for nine items with semantic IDs, every other one of this genre."""
    events, items, ids = (folder / name for name in ("events.csv", "items.csv", "ids.json"))
    rows = (f"{user},{(user + n) % 9},{n}\n" for user in range(30) for n in range(6))
    events.write_text("user,item,timestamp\n" + "".join(rows))
    items.write_text("item,title,genre\n" + "".join(f"{n},title {n},{genre * (n % 2)}\n" for n in range(9)))
    ids.write_text(json.dumps({str(n): [n, 0] for n in range(9)}))
    return ["--interactions", str(events), "--items", str(items), "--semantic-ids", str(ids)]


def test_what_is_of_earlier_histories_is_not_measured(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ids of items may be others by now."""
    (trained / "histories.parquet").write_bytes(b"older")
    record(trained, "data", "key", [trained / "histories.parquet"], {})
    of = {OF: {"histories.parquet": recorded(trained, "histories.parquet")}}
    record(trained, "tokenise", "key", [trained / CATALOGUE], of)
    (trained / "histories.parquet").write_bytes(b"newer")
    record(trained, "data", "another", [trained / "histories.parquet"], {})
    assert main(["evaluate", str(trained)]) == 2
    assert (
        f"is of an earlier histories.parquet; `genrec data {trained}` makes it anew"
        in capsys.readouterr().err
    )
