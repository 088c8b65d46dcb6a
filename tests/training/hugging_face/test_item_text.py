"""Titles of an imported language model as its items' tokens: a ranker reads them as the checkpoint itself does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch

from build.catalogue import add_items, remove_items
from build.openvino.engines import build_engines
from build.validity import build_validity
from cli.main import main
from ensembles.local import LocalRecommender, request
from export.generator import export_artifact
from genrec.catalogue.items import Catalogue
from genrec.catalogue.versions import folder_of
from genrec.errors import InputError
from genrec.nn.checkpoint import load_generator
from genrec.nn.ranker_checkpoint import load_ranker
from genrec.rank.item_tokens import read_item_tokens, token_numbers
from training.generator.recommend import model_recommender
from training.hugging_face.checkpoint import import_checkpoint
from training.ranker.candidates import BEAM_WIDTH
from training.ranker.train import open_places

transformers = pytest.importorskip(
    "transformers", reason="makes checkpoints with transformers where it is installed"
)

from tests.training.hugging_face.layouts import Folders, publish  # noqa: E402  (imports transformers)

TOKENS, WIDTH = 6, 6  # of a title, cut or filled up


class Titled(NamedTuple):
    """What was published, the artifact, titles' tokens by item in the checkpoint's numbers, and its own model."""

    published: Folders
    artifact: Path
    titles: dict[int, list[int]]
    model: torch.nn.Module


def titles_of(published: Folders) -> dict[int, list[int]]:
    tokenizer = transformers.AutoTokenizer.from_pretrained(published.checkpoint)
    lines = {int(key): tokenizer(f"{key} what").input_ids for key in published.items}
    return {key: [*line, *[tokenizer.eos_token_id] * TOKENS][:TOKENS] for key, line in lines.items()}


@pytest.fixture(scope="module")
def titled(tmp_path_factory: pytest.TempPathFactory) -> Titled:
    """Imported and trained by the command line, beside a generator that reads text around its items."""
    folder = tmp_path_factory.mktemp("titled")
    published, artifact = publish(folder, "openonerec"), folder / "artifact"
    titles = titles_of(published)
    (folder / "titles.json").write_text(json.dumps({str(item): line for item, line in titles.items()}))
    rows = [f"u{user},{100 + (7 * user + n) % 60},{n}" for user in range(4) for n in range(6)]
    (folder / "seen.csv").write_text("\n".join(["user,item,timestamp", *rows]))
    options = {
        **published.options,
        "interactions": folder / "seen.csv",
        "item_tokens": folder / "titles.json",
    }
    given = [text for name, path in options.items() for text in (f"--{name.replace('_', '-')}", str(path))]
    assert main(["import", str(published.checkpoint), str(artifact), *given, "--max-history", "5"]) == 0
    recipe = {"recipe": "ranker", "epochs": 1, "averaging": 0.0, "learning_rate": 0.1}
    (folder / "recipe.json").write_text(json.dumps(recipe))
    train = ["train", str(artifact), "--recipe", str(folder / "recipe.json"), "--ranker-history", "tokens"]
    assert main(train) == 0
    build_validity(artifact)
    kind = transformers.AutoModelForCausalLM
    return Titled(
        published, artifact, titles, kind.from_pretrained(published.checkpoint, dtype=torch.float32).eval()
    )


@torch.no_grad()
def test_a_title_is_read_as_the_checkpoint_reads_it(titled: Titled) -> None:
    generator, catalogue = (
        load_generator(titled.artifact / "model"),
        Catalogue.load(titled.artifact / "catalogue.parquet"),
    )
    table = read_item_tokens(titled.artifact, len(catalogue), generator.config)
    numbers = token_numbers(titled.artifact, generator.config)
    want = np.array([titled.titles[item] for item in catalogue.item_ids.tolist()])
    assert (numbers[table] == want).all() and len(numbers) < titled.model.config.vocab_size
    hidden, _ = generator.prefill(torch.from_numpy(table).long())
    theirs = titled.model.model(torch.from_numpy(want)).last_hidden_state
    torch.testing.assert_close(hidden, theirs, atol=1e-4, rtol=1e-4)


def test_its_candidates_are_what_the_generator_answers(titled: Titled) -> None:
    """Who is asked with the text around the items."""
    places, candidates = open_places(titled.artifact, history="tokens")
    catalogue, test = Catalogue.load(titled.artifact / "catalogue.parquet"), candidates["test"]
    recommend = model_recommender(load_generator(titled.artifact / "model"), catalogue, BEAM_WIDTH)
    for user, cut, rows in zip(test.user, test.cut, test.rows, strict=True):
        (want,) = recommend([catalogue.item_ids[places.rows[user][:cut]]], 20, True)
        assert catalogue.item_ids[rows[:20]].tolist() == want.tolist()


@torch.no_grad()
def by_the_checkpoint(titled: Titled, history: list[int], candidates: list[int]) -> dict[int, float]:
    """The ranker over the checkpoint's whole embedding, asked in the checkpoint's numbers."""
    ranker, catalogue = (
        load_ranker(titled.artifact / "model"),
        Catalogue.load(titled.artifact / "catalogue.parquet"),
    )
    ranker.generator.embed_tokens.weight = titled.model.get_input_embeddings().weight
    codes = catalogue.codes[catalogue.rows_of(candidates)] + np.array(ranker.config.code_offsets)
    user = torch.tensor([[token for item in history for token in titled.titles[item]]])
    items = torch.tensor([[titled.titles[item] for item in candidates]])
    scores = ranker(
        user, torch.tensor([user.shape[1]]), items, torch.from_numpy(codes)[None].long(), "split"
    )[0]
    return dict(zip(candidates, scores.tolist(), strict=True))


@pytest.mark.long
def test_a_ranking_over_titles_scores_as_the_checkpoint_s_embeddings_do(titled: Titled) -> None:
    artifact = titled.artifact
    export_artifact(artifact)
    build_engines(artifact, "f32")
    history, candidates = [100, 101, 119, 105], [130, 131, 140, 155, 120, 108]
    want = by_the_checkpoint(titled, history, candidates)
    assert np.ptp(list(want.values())) > 1e-2
    with LocalRecommender(artifact, WIDTH, decoder="rank", pool_user_mb=1, pool_item_mb=1) as local:
        for reused in (0, len(history) * TOKENS):
            (answer,) = local.rank([(history, candidates)], 6, user_id=7)
            assert isinstance(answer, dict), answer
            found = dict(zip(answer["item_ids"][0].tolist(), answer["scores"][0].tolist(), strict=True))
            assert found == pytest.approx(want, abs=1e-3) and answer["report"][0][4] == reused
    with LocalRecommender(artifact, WIDTH) as local:
        (retrieved,) = local.recommend([history], WIDTH)
    with LocalRecommender(
        artifact, WIDTH, decoder="recommend_and_rank", pool_user_mb=1, pool_item_mb=1
    ) as local:
        asked = {**request(history, WIDTH), "retrieve": np.array([[WIDTH]], np.int32)}
        (both,) = local.runtime.run([asked])
    ranker = load_ranker(artifact / "model")
    weight, items = ranker.options.generator_weight, retrieved["item_ids"][0].tolist()
    prior = dict(zip(items, retrieved["scores"][0].tolist(), strict=True))
    want = {
        item: score + weight * prior[item]
        for item, score in by_the_checkpoint(titled, history, items).items()
    }
    found = dict(zip(both["item_ids"][0].tolist(), both["scores"][0].tolist(), strict=True))
    assert found == pytest.approx(want, abs=1e-3)


def test_later_items_have_tokens_that_were_kept(titled: Titled, tmp_path: Path) -> None:
    """In the checkpoint's numbers, as at the import; of others the artifact has no rows."""
    head = ",".join(("item,title,code_1,code_2,code_3", *(f"token_{n + 1}" for n in range(TOKENS))))
    line, new = titled.titles[117], tmp_path / "new.csv"
    (unkept,) = transformers.AutoTokenizer.from_pretrained(titled.published.checkpoint)("!").input_ids
    new.write_text(f"{head}\n5,new,0,3,6,{','.join(map(str, [*line[:-1], unkept]))}\n")
    with pytest.raises(
        InputError, match=rf"column token_6: line 2 is {unkept} .*tokens that the artifact keeps"
    ):
        add_items(titled.artifact, new)
    new.write_text(f"{head}\n5,new,0,3,6,{','.join(map(str, line))}\n")
    version = add_items(titled.artifact, new)
    version = remove_items(titled.artifact, np.array([117]))
    config = load_generator(titled.artifact / "model").config
    table = read_item_tokens(folder_of(titled.artifact, version), len(titled.titles), config)
    assert token_numbers(titled.artifact, config)[table[-1]].tolist() == line


REFUSED = {
    "an item left out": ({"100": None}, r"lacks 1 of 60 items, the first is '100'"),
    "another length": ({"100": [1]}, r"item '\d+' has \d tokens, not \d"),
    "no list": ({"100": "12"}, r"item '100' has no list of tokens"),
    "no number": ({"100": ["x", 1]}, r"item '100' has 'x', which is no token"),
    "beyond the vocabulary": ({"100": [1, 99_999]}, r"item '100' has 99999, which is no token"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_tokens_that_do_not_fit_are_refused_by_item(tmp_path: Path, case: str) -> None:
    change, says = REFUSED[case]
    published, path = publish(tmp_path, "codes"), tmp_path / "titles.json"
    given = {**{key: [3, 4] for key in published.items}, **change}
    path.write_text(json.dumps({key: line for key, line in given.items() if line is not None}))
    with pytest.raises(InputError, match=rf"titles\.json: {says} .*numbers of tokenizer\.json"):
        import_checkpoint(published.checkpoint, tmp_path / "artifact", **published.options, item_tokens=path)
    assert not (tmp_path / "artifact").exists()
