"""The ranker: its scores in every order against a slow twin, with all computed and over entries; what is on disk."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from genrec.errors import ArtifactError, InputError
from genrec.models.config import ModelConfig
from genrec.nn.attention import Attend, behind, past_of
from genrec.nn.checkpoint import save_generator
from genrec.nn.model import Generator
from genrec.nn.ranker import KV, Ranker
from genrec.nn.ranker_checkpoint import load_ranker, save_ranker
from genrec.rank.item_tokens import item_tokens, save_item_tokens
from genrec.rank.options import OPTIONS, WEIGHTS, RankerConfig
from tests.oracles.ranker_twin import plain_scores
from tests.tiny import random_ranker, tiny_catalogue

LENGTHS = (9, 4)  # of two users: the second is padded
ORDERS = ("user", "item", "split")
CANDIDATES, TOKENS = 4, 3


def ranker_of(shared: bool, model_type: str = "qwen3", reach: int = 0, layers: int = 0) -> Ranker:
    torch.manual_seed(3)
    config = ModelConfig(
        (7, 6), 8, hidden_size=16, num_attention_heads=4, num_key_value_heads=2, head_dim=8, intermediate_size=24,
        model_type=model_type,
    )  # fmt: skip
    return random_ranker(
        Generator(config), RankerConfig(shared, item_tokens=TOKENS, reach=reach, layers=layers)
    )


@pytest.fixture
def asked() -> tuple[torch.Tensor, ...]:
    """Users [2, S] padded right, lengths [2], items [2, C, t] with tokens of their own, codes [2, C, 2]."""
    torch.manual_seed(1)
    user, items = torch.randint(0, 13, (2, max(LENGTHS))), torch.randint(0, 13, (2, CANDIDATES, TOKENS))
    codes = torch.stack((torch.randint(0, 7, (2, CANDIDATES)), torch.randint(7, 13, (2, CANDIDATES))), -1)
    return user, torch.tensor(LENGTHS), items, codes


def twin(ranker: Ranker, asked: tuple[torch.Tensor, ...], order: str) -> torch.Tensor:
    user, _, items, codes = (each.tolist() for each in asked)
    return torch.tensor(
        [
            plain_scores(ranker, user[b][:length], items[b], codes[b], order)
            for b, length in enumerate(LENGTHS)
        ],
        dtype=torch.float64,
    )


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("model_type", ["qwen3", "qwen2"])
@torch.no_grad()
def test_scores_are_the_twin_s(
    asked: tuple[torch.Tensor, ...], shared: bool, order: str, model_type: str
) -> None:
    """Users of two lengths in one batch, so that padding would show."""
    ranker = ranker_of(shared, model_type)
    want = twin(ranker, asked, order)
    assert want.std() > 0.1, "scores differ, or nothing is compared"
    torch.testing.assert_close(ranker(*asked, order).double(), want, rtol=0, atol=1e-4)
    # Angles are in float32
    torch.testing.assert_close(ranker.double()(*asked, order), want, rtol=0, atol=1e-5)


@pytest.mark.parametrize("order", ORDERS)
@torch.no_grad()
def test_a_reach_is_of_the_newest_tokens_of_the_user_alone(
    asked: tuple[torch.Tensor, ...], order: str
) -> None:
    """Of nine tokens and of four; what it leaves out is known by what was left."""
    found = {reach: ranker_of(True, reach=reach)(*asked, order) for reach in (0, 4, 6, 10)}
    torch.testing.assert_close(
        found[6].double(), twin(ranker_of(True, reach=6), asked, order), rtol=0, atol=1e-4
    )
    assert torch.equal(found[10], found[0]) and torch.equal(found[4][1], found[0][1])
    assert (found[4][0] - found[0][0]).abs().min() > 1e-3


@pytest.mark.parametrize("order", ORDERS)
@torch.no_grad()
def test_discriminant_tokens_may_have_the_last_layers_alone(
    asked: tuple[torch.Tensor, ...], order: str
) -> None:
    ranker, whole = ranker_of(True, layers=1), ranker_of(True)
    assert (len(ranker.layers()), len(whole.layers())) == (1, ranker.config.num_hidden_layers)
    torch.testing.assert_close(ranker(*asked, order).double(), twin(ranker, asked, order), rtol=0, atol=1e-4)
    most = ranker.config.num_hidden_layers
    with pytest.raises(InputError, match=f"layers: is {most + 1} .*at most {most}"):
        Ranker(ranker.generator, True, layers=most + 1)


@pytest.mark.parametrize("order", ORDERS)
@torch.no_grad()
def test_reused_entries_change_nothing(asked: tuple[torch.Tensor, ...], order: str) -> None:
    """Users come in two parts, the second behind the first; items from a table in which others lie between them."""
    ranker = ranker_of(True)
    user, length, items, codes = asked
    cut, start, past = 5, 0, None
    table = None if order == "user" else ranker.items(torch.cat((items[1], items[0], items[1])))
    chosen = torch.tensor([[4, 5, 6, 7], [8, 1, 2, 3]])  # items of the second user lie at 0 and at 8
    if order == "item":
        start, past = TOKENS, [past_of(table, chosen, n) for n in range(ranker.config.num_hidden_layers)]
    first = ranker.prefix(user[:, :cut], start, past and behind_all(past))
    before = joined(past, first) if past else first
    entry = joined(first, ranker.prefix(user[:, cut:], start + cut, behind_all(before)))
    if order == "user":
        table = ranker.candidates(items, entry, length)
        chosen = torch.arange(2 * CANDIDATES).view(2, CANDIDATES)
    states = ranker.states(entry, length, table, chosen, order)
    found = ranker.scores(states, codes)
    torch.testing.assert_close(found.double(), twin(ranker, asked, order), rtol=0, atol=1e-4)


def behind_all(past: KV) -> Attend:
    return behind(past, torch.full((len(LENGTHS),), past[0][0].shape[2]))


def joined(before: KV, after: KV) -> KV:
    return [
        tuple(torch.cat(pair, 2) for pair in zip(b, a, strict=True))
        for b, a in zip(before, after, strict=True)
    ]


@torch.no_grad()
def test_an_order_changes_no_distance(asked: tuple[torch.Tensor, ...]) -> None:
    """A user who starts behind the items, and saw none of them, is read in order `item` as in order `split`."""
    ranker = ranker_of(True)
    user, length, items, _ = asked
    table, chosen = ranker.items(items.flatten(0, 1)), torch.arange(2 * CANDIDATES).view(2, CANDIDATES)
    split = ranker.states(ranker.prefix(user), length, table, chosen, "split")
    behind = ranker.states(ranker.prefix(user, TOKENS), length, table, chosen, "item")
    torch.testing.assert_close(behind, split, rtol=0, atol=1e-4)


@torch.no_grad()
def test_company_changes_a_score_in_item_order_alone(asked: tuple[torch.Tensor, ...]) -> None:
    """In `user` and `split` a score depends on the user and the item alone."""
    ranker = ranker_of(True)
    user, length, items, codes = asked
    changed = {
        order: (ranker(*asked, order)[:, :2] - ranker(user, length, items[:, :2], codes[:, :2], order))
        .abs()
        .max()
        for order in ORDERS
    }
    assert changed["user"] < 1e-5 and changed["split"] < 1e-5 and changed["item"] > 1e-3


@pytest.fixture(params=[True, False], ids=["shared", "own"])
def saved(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Ranker, Path]:
    ranker = ranker_of(request.param)
    save_generator(ranker.generator, tmp_path)
    ranker.options = RankerConfig(request.param, "both", TOKENS, 1.5)
    if not request.param:
        ranker.generator.embed_tokens.weight.data += 1  # it learnt; the generator beside it did not
    save_ranker(ranker, tmp_path)
    return ranker, tmp_path


@torch.no_grad()
def test_what_is_saved_loads_again(saved: tuple[Ranker, Path], asked: tuple[torch.Tensor, ...]) -> None:
    ranker, folder = saved
    again = load_ranker(folder)
    assert again.options == ranker.options and again.options.orders == ("user", "item")
    for order in ORDERS:
        assert torch.equal(ranker(*asked, order), again(*asked, order))
    stored = load_file(folder / WEIGHTS)
    assert any(name.startswith("generator.") for name in stored) is not ranker.shared


def test_other_generators_and_broken_files_are_refused_by_name(saved: tuple[Ranker, Path]) -> None:
    ranker, folder = saved
    whole = (folder / WEIGHTS).read_bytes()
    # Not the file itself
    tensors = {name: tensor.clone() for name, tensor in load_file(folder / WEIGHTS).items()}
    for content in (whole[:-7], b""):
        (folder / WEIGHTS).write_bytes(content)
        with pytest.raises(ArtifactError, match=r"ranker\.safetensors: not this generator's ranker"):
            load_ranker(folder)
    less = {name: tensor for name, tensor in tensors.items() if name != "score"}
    for change, problem in ((less, "lacks .*score"), (tensors | {"more": torch.ones(1)}, "more.* too many")):
        save_file(change, folder / WEIGHTS)
        with pytest.raises(ArtifactError, match=problem):
            load_ranker(folder)
    (folder / WEIGHTS).write_bytes(whole)
    kept = shutil.copy(folder / OPTIONS, folder / "kept")
    good = json.loads((folder / OPTIONS).read_text())
    wrong = (
        {"order": "sideways"}, {"item_tokens": 0}, {"generator_weight": -1}, {"shared": 3}, {"what": 1}, {"reach": 3},
        {"reach": -2}, {"reach": "4"}, {"layers": -1}, {"layers": 9}, {"layers": 1, "shared": False},
        {"generator_weight": 1e7}, {"generator_weight": float("inf")}, {"generator_weight": 10**400},
        {"history": "words"},
    )  # fmt: skip
    for text in ("{", "[]", *(json.dumps(good | change) for change in wrong)):
        (folder / OPTIONS).write_text(text)
        with pytest.raises(ArtifactError, match=r"ranker\.json"):
            load_ranker(folder)
    shutil.copy(kept, folder / OPTIONS)
    ranker.generator.lm_head.weight.data += 1
    save_generator(ranker.generator, folder)
    with pytest.raises(ArtifactError, match=r"trained on another generator.*`genrec train .* --ranker`"):
        load_ranker(folder)


def test_tokens_of_items_are_their_semantic_ids_or_a_table(tmp_path: Path) -> None:
    catalogue = tiny_catalogue(5, (3, 4))
    config = ModelConfig((3, 4), 8, vocab_size=20, code_offsets=(2, 9))
    assert (item_tokens(tmp_path, catalogue, config) == catalogue.codes + np.array([2, 9])).all()
    table = np.arange(15, dtype=np.int32).reshape(5, 3)
    save_item_tokens(tmp_path, table)
    assert (item_tokens(tmp_path, catalogue, config) == table).all()
    for wrong, problem in (
        (table[:4], "a row for every item"), (table[0], "a row for every item"), (table[:, :0], "a row for every item"),
        (table + 6, r"row 4 is \[18, 19, 20\], outside the vocabulary 0\.\.19"), (table - 1, r"row 0 is \[-1, 0, 1\]"),
    ):  # fmt: skip
        save_item_tokens(tmp_path, wrong)
        with pytest.raises(ArtifactError, match=rf"item_tokens\.safetensors.*{problem}"):
            item_tokens(tmp_path, catalogue, config)
