"""An imported checkpoint answers what transformers answers for it: logits, and beams through the built engine."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from build.openvino.engines import build_engines
from build.validity import build_validity
from cli.chain import make_model
from clients.recommender import Recommender
from ensembles.local import LocalRecommender
from export.generator import export_artifact
from genrec.artifact import load_config
from genrec.catalogue.items import Catalogue
from genrec.errors import ArtifactError, InputError
from genrec.manifest import verify
from genrec.models.prompt import prompt_of
from genrec.nn.beam import Tree, beam_search, rank_items
from genrec.nn.checkpoint import load_generator
from tests.oracles.twin import score_every_item
from tests.serving.servers import brief_server
from training.generator.draft import DraftSettings, draft_artifact
from training.generator.evaluate import evaluate
from training.generator.recommend import model_recommender
from training.hugging_face.checkpoint import import_checkpoint
from training.ranker.train import RankerSettings, ranker_artifact
from training.sharded.world import World
from training.stages import load_histories

transformers = pytest.importorskip("transformers", reason="compares with transformers where it is installed")

from tests.training.hugging_face.layouts import LAYOUTS, publish, their_beams  # noqa: E402  (imports transformers)

WIDTH = 6
HISTORIES = (["100"], ["101", "119", "105"], ["130", "130", "101", "140", "155", "120", "108"])


@pytest.fixture(scope="module", params=LAYOUTS)
def imported(request, tmp_path_factory):
    """(what was published, the artifact)."""
    folder = tmp_path_factory.mktemp(request.param)
    published = publish(folder, request.param)
    import_checkpoint(published.checkpoint, folder / "artifact", **published.options, max_history=5)
    return published, folder / "artifact"


@pytest.fixture(scope="module")
def theirs(imported):
    """transformers' model in float32, and its tokenizer."""
    folder = imported[0].checkpoint
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    return model, transformers.AutoTokenizer.from_pretrained(folder)


def their_tokens(published, tokenizer, history):
    special = (published.layout.prompt or {"special_tokens": False}).get("special_tokens", True)
    return tokenizer(published.text(history[-5:]), add_special_tokens=special).input_ids


@torch.no_grad()
def test_prompts_and_logits_are_theirs(imported, theirs):
    published, artifact = imported
    model, tokenizer = theirs
    verify(artifact)
    config, catalogue = load_config(artifact), Catalogue.load(artifact / "catalogue.parquet")
    generator = load_generator(artifact / "model")
    for history in HISTORIES:
        tokens = their_tokens(published, tokenizer, history)
        rows = catalogue.rows_of([int(key) for key in history[-5:]])
        mine = prompt_of(config, catalogue.codes[rows] + np.array(config.code_offsets))
        assert len(mine) == len(tokens) == config.prompt_length(len(rows)) <= config.max_prompt
        hidden, _ = generator.prefill(torch.from_numpy(mine)[None].long())
        want = model(torch.tensor([tokens])).logits[0]
        for level, template in enumerate(published.layout.templates, 1):
            codes = np.unique(catalogue.codes[:, level - 1])
            there = tokenizer.convert_tokens_to_ids([template.format(code) for code in codes])
            torch.testing.assert_close(
                generator.head(hidden[0], level)[:, codes], want[:, there], atol=1e-4, rtol=1e-4
            )


def check_answer(published, theirs, history, item_ids, scores=None):
    """Items in the order of their beams, and their scores."""
    model, tokenizer = theirs
    items = [tokenizer.convert_tokens_to_ids(tokens) for tokens in published.items.values()]
    want = their_beams(model, their_tokens(published, tokenizer, history), items, WIDTH)
    paths = [tuple(tokenizer.convert_tokens_to_ids(published.items[str(item)])) for item in item_ids]
    mine = list(dict.fromkeys(paths))
    # Two items may share a semantic ID and take two of our places: ours are the first of theirs.
    assert len(item_ids) == WIDTH and mine == sorted(want, key=want.get, reverse=True)[: len(mine)]
    if scores is not None:
        np.testing.assert_allclose(scores, [want[path] for path in paths], atol=2e-4)


def test_evaluation_asks_as_they_do(imported, theirs):
    published, artifact = imported
    catalogue = Catalogue.load(artifact / "catalogue.parquet")
    recommend = model_recommender(load_generator(artifact / "model"), catalogue, WIDTH)
    asked = [np.array([int(key) for key in history]) for history in HISTORIES]
    for history, ranking in zip(HISTORIES, recommend(asked, WIDTH, False), strict=True):
        check_answer(published, theirs, history, ranking.tolist())


@torch.no_grad()
def test_scores_of_all_items_are_those_of_plain_enumeration(imported, theirs):
    """With as many beams as there are semantic IDs, beam search has every item."""
    _, artifact = imported
    catalogue, generator = Catalogue.load(artifact / "catalogue.parquet"), load_generator(artifact / "model")
    rows = catalogue.rows_of([int(key) for key in HISTORIES[1]])
    want = score_every_item(generator, catalogue, rows)
    tree = Tree.of(catalogue)
    tokens = prompt_of(generator.config, catalogue.codes[rows] + np.array(generator.config.code_offsets))
    leaves, scores = beam_search(
        generator, tree, torch.from_numpy(tokens)[None].long(), torch.tensor([len(tokens)]), [rows[:0]], 64
    )
    found, values = rank_items(tree, leaves, scores, [rows[:0]], len(catalogue))
    mine = dict(zip(catalogue.item_ids[found[0]].tolist(), values[0].tolist(), strict=True))
    assert mine.keys() == want.keys()
    np.testing.assert_allclose([mine[item] for item in want], list(want.values()), atol=1e-4)


@pytest.fixture(scope="module")
def servable(imported):
    """The artifact, exported and built by the stages that all artifacts go through."""
    artifact = imported[1]
    export_artifact(artifact)
    build_validity(artifact)
    build_engines(artifact, "f32")
    return artifact


# Two of the layouts: an export is half a minute, and families differ in what the tests of export have.
@pytest.mark.parametrize(
    "imported", [pytest.param("lc-rec", marks=pytest.mark.long), "openonerec"], indirect=True
)
def test_beams_of_the_built_engine_are_theirs(imported, theirs, servable):
    published = imported[0]
    with LocalRecommender(servable, beam_width=WIDTH, slots=4) as local:
        answers = local.recommend([[int(key) for key in history] for history in HISTORIES], WIDTH)
    for history, answer in zip(HISTORIES, answers, strict=True):
        check_answer(published, theirs, history, answer["item_ids"][0], answer["scores"][0])


@pytest.mark.serving
@pytest.mark.parametrize("imported", ["openonerec"], indirect=True)
def test_the_real_server_answers_their_beams(imported, theirs, servable):
    with (
        brief_server(servable, beam_width=WIDTH, ensembles=("recommend",)) as server,
        Recommender(server.grpc_url) as recommender,
    ):
        for history in HISTORIES:
            answer = recommender.recommend([int(key) for key in history], WIDTH)
            check_answer(imported[0], theirs, history, list(answer.item_ids), answer.scores)


@pytest.mark.parametrize("imported", ["minionerec"], indirect=True)
def test_what_knows_no_text_between_items_is_not_trained_beside_it(imported):
    said = r"model: reads text around items, which a {} does not \(accepted: prompts of codes alone{}\)"
    with pytest.raises(InputError, match=said.format("draft head", "")):
        draft_artifact(World(), imported[1], DraftSettings(), imported[1] / ".training")
    of_ranker = said.format("ranker with --ranker-history codes", "; or --ranker-history tokens")
    with pytest.raises(InputError, match=of_ranker):
        ranker_artifact(World(), imported[1], RankerSettings(), imported[1] / ".training")
    with pytest.raises(InputError, match=r"model: was imported from .* \(accepted: --ranker"):
        make_model(imported[1])


@pytest.mark.parametrize("imported", ["minionerec"], indirect=True)
def test_interactions_give_histories_and_popularity(imported, tmp_path):
    published = imported[0]
    rows = [f"u{user},{100 + (7 * user + n) % 60},{n}" for user in range(4) for n in range(5)]
    (tmp_path / "seen.csv").write_text("\n".join(["user,item,timestamp", *rows]))
    import_checkpoint(
        published.checkpoint, tmp_path / "a", **published.options, interactions=tmp_path / "seen.csv"
    )
    verify(tmp_path / "a")
    catalogue = Catalogue.load(tmp_path / "a" / "catalogue.parquet")
    histories = load_histories(tmp_path / "a")
    assert len(histories) == 4 and catalogue.popularity.sum() == 12
    model = model_recommender(load_generator(tmp_path / "a" / "model"), catalogue, beam_width=4)
    assert evaluate(model, histories)["users"] == 4


@pytest.mark.parametrize("imported", ["openonerec"], indirect=True)
def test_numbers_are_spelled_as_they_are_told(imported, tmp_path):
    """A table of codes, and templates beside it, give the very artifact that spelled tokens give."""
    published, artifact = imported
    rows = [",".join([key, *(token.rstrip(">").rpartition("_")[2] for token in tokens)])
            for key, tokens in published.items.items()]  # fmt: skip
    (tmp_path / "ids.csv").write_text("\n".join(["item,code_1,code_2,code_3", *rows]))
    options = published.options | {"semantic_ids": tmp_path / "ids.csv"}
    with pytest.raises(ArtifactError, match=r"has no token <a_\{\}>, which level 1"):
        import_checkpoint(published.checkpoint, tmp_path / "a", **options)
    for wrong in (("<s_a_>", "<s_b_{}>", "<s_c_{}>"), ("{}",) * 3):
        with pytest.raises(
            InputError, match=r"code_tokens: is '.*accepted: a template for every level with \{\}"
        ):
            import_checkpoint(published.checkpoint, tmp_path / "a", **options, templates=wrong)
    templates = published.layout.templates
    import_checkpoint(published.checkpoint, tmp_path / "a", **options, templates=templates, max_history=5)
    for name in ("catalogue.parquet", "model/config.json", "model/model.safetensors"):
        assert (tmp_path / "a" / name).read_bytes() == (artifact / name).read_bytes()
