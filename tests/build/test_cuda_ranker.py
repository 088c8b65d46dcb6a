"""The ranker of target `cuda` on CPU tensors, and the attention kernel for it, emulated: each against its twin."""

import shutil

import numpy as np
import pytest
import torch

from build.plugin import compile as plugin
from genrec.engine import abi
from genrec.engine.cuda import split
from genrec.engine.cuda.discriminant import candidate_attention
from genrec.engine.cuda.host import tensor_of
from genrec.engine.cuda.kept import KeptItems, KeptUsers
from genrec.engine.cuda.operations import TorchOperations
from genrec.engine.cuda.ranker import CudaRanker
from genrec.engine.cuda.split import RANKINGS, SplitPasses
from genrec.engine.interface import Split, UserName
from genrec.models.config import ModelConfig
from genrec.nn.attention import behind, behind_items
from genrec.nn.model import Generator
from genrec.pool.owner import TTL_S
from genrec.rank.options import MOST_CANDIDATES, RankerConfig
from tests.build.attention import DTYPES, TOLERANCE, call, error, random_case
from tests.tiny import random_ranker

CPU = torch.device("cpu")
CONFIG = ModelConfig((12, 9, 7), 40, hidden_size=32, num_hidden_layers=3, head_dim=8, intermediate_size=48)
OPTIONS = {
    "split": RankerConfig(True, "all", 3),
    "reach": RankerConfig(True, "split", 2, reach=4),
    "last layers": RankerConfig(True, "split", 3, layers=2),
    "a backbone of its own": RankerConfig(False, "all", 4),
}


@pytest.mark.parametrize("device", ["", "-DXATTENTION_CAPABILITY=90"], ids=["any", "hopper"])
def test_kernel_reads_rows_of_items_by_queries_of_their_own(tmp_path, device):
    """Candidates that several share, more items than candidates; every split takes its part of an item."""
    if shutil.which("g++") is None:
        pytest.skip("no g++: the emulated kernel is not compiled")
    plugin.compile_for_host(tmp_path / "emulated.so", extra=[device] if device else [])
    library = abi.load(tmp_path / "emulated.so")
    # 128 columns and more than 64 rows of a KV head are Hopper's; 8 columns and float32 a row's.
    for kind, size, beams, tokens, splits in (
        ("f32", 16, 5, 3, 1), ("f16", 8, 5, 15, 1), ("bf16", 16, 40, 15, 3), ("bf16", 128, 70, 5, 4),
    ):  # fmt: skip
        q, *shared, _, _, length = random_case(beams, 2, beams, 4, 2, size, 200, 1, kind)
        items = [torch.randn(90, tokens, 2, size).to(DTYPES[kind]) for _ in "kv"]
        own_q, rows = torch.randn(q.shape).to(q.dtype), torch.randint(0, 90, (2, beams))
        case = [q, *shared, *items, length]
        got = call(library, case, splits, own_q, rows)
        exact = [each.double() for each in (q, *shared, *items)]
        want = candidate_attention(*exact, length, own_q.double(), rows)
        assert not got.isnan().any() and error(got, want.numpy()) < TOLERANCE[kind], (kind, size)


def made(name):
    torch.manual_seed(1)
    ranker = random_ranker(Generator(CONFIG).eval(), OPTIONS[name])
    return ranker, CudaRanker(ranker, None, TorchOperations(), 1 << 20, 1 << 20)


def entry_of(ranker, tokens, span=None):
    """A user's entry [1, 2N, G, S, D] by the model, NaN behind his tokens."""
    kv = [each for pair in ranker.prefix(torch.from_numpy(tokens)[None]) for each in pair]
    whole = np.full((1, len(kv), 2, span or len(tokens), 8), np.nan, np.float32)
    for n, each in enumerate(kv):
        whole[0, n, :, : len(tokens)] = each[0].numpy()
    return whole


@torch.no_grad()
@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("named", [True, False])
def test_split_equals_the_model(name, named):
    """Up to eight users of many lengths, candidates that several have; what was kept is read again."""
    ranker, device = made(name)
    draw, t = np.random.default_rng(0), OPTIONS[name].item_tokens
    items = draw.integers(0, 28, (60, t))
    host = ranker.items(torch.from_numpy(items)).numpy()
    names = draw.integers(0, 1 << 60, (60, 2)).astype(np.uint64)
    histories = [draw.integers(0, 28, int(length)) for length in draw.integers(1, 50, 12)]
    for turn, many in enumerate((1, 3, 8, 2, 8)):
        asked, want = [], []
        for user in draw.integers(0, 12, many):
            tokens, rows = histories[user], draw.integers(0, 60, int(draw.integers(1, 40)))
            entry = entry_of(ranker, tokens, len(tokens) + 3)
            name_of = UserName(bytes([int(user)]), 0) if named else None
            if named and turn > 3:
                entry = np.full_like(entry, np.nan)  # it is there: nothing of this is read
            asked.append(Split(rows, len(tokens), entry, name_of, names[rows] if named else None))
            user_kv = ranker.prefix(torch.from_numpy(tokens)[None])
            length = torch.tensor([len(tokens)])
            chosen = torch.from_numpy(rows)[None]
            want.append(ranker.states(user_kv, length, torch.from_numpy(host), chosen, "split")[0])
            if turn == 2 and named:  # all are there after this
                for other in range(12):
                    device.keep(UserName(bytes([other]), 0), entry_of(ranker, histories[other]))
        for got, exact in zip(device.split(host, asked), want, strict=True):
            np.testing.assert_allclose(got, exact.numpy(), atol=2e-5)


@torch.no_grad()
@pytest.mark.parametrize("name", ["split", "a backbone of its own"])
def test_entries_and_the_papers_orders_equal_the_model(name):
    ranker, device = made(name)
    t = OPTIONS[name].item_tokens
    tokens, candidates = torch.randint(0, 28, (1, 20)), torch.randint(0, 28, (1, 9, t))
    user, length = ranker.prefix(tokens), torch.tensor([20])
    room = [np.full((1, 2, 20, 8), np.nan, np.float32) for _ in range(6)]
    device.entries(tokens.numpy(), room)
    flat = [each for pair in user for each in pair]
    assert all(torch.allclose(tensor_of(a), b, atol=1e-5) for a, b in zip(room, flat, strict=True))

    new = [np.full((1, 2, 6, 8), np.nan, np.float32) for _ in range(6)]
    before = [np.where(np.arange(20)[:, None] < 14, each.numpy(), np.nan) for each in flat]
    device.extend(tokens[:, 14:].numpy(), 14, before, new)
    past = ranker.prefix(tokens[:, 14:], torch.tensor([14]), behind(user, torch.tensor([14])))
    want = [each for pair in past for each in pair]
    assert all(torch.allclose(tensor_of(a), b, atol=1e-5) for a, b in zip(new, want, strict=True))

    rows = torch.arange(9)[None]
    first = ranker.states(user, length, ranker.candidates(candidates, user, length), rows, "user")[0]
    got = device.user_first(candidates[0].numpy(), 20, [each.numpy() for each in flat])
    np.testing.assert_allclose(got, first.numpy(), atol=2e-5)

    table = ranker.items(torch.randint(0, 28, (30, t)))
    chosen = torch.randint(0, 30, (1, 9))
    behind_them = ranker.prefix(tokens, t, behind_items(table, chosen))
    want_item = ranker.states(behind_them, length, table, chosen, "item")[0]
    got = device.item_first(tokens.numpy(), table.numpy(), chosen[0].numpy())
    np.testing.assert_allclose(got, want_item.numpy(), atol=2e-5)


def test_rankings_whose_items_have_no_room_together_are_passes_of_their_own():
    ranker, device = made("split")
    assert device._items.places >= MOST_CANDIDATES
    device._items.places = 30
    draw = np.random.default_rng(0)
    host = ranker.items(torch.from_numpy(draw.integers(0, 28, (60, 3)))).detach().numpy()
    tokens = draw.integers(0, 28, 9)
    with torch.no_grad():
        asked = [Split(np.arange(n, n + 20), 9, entry_of(ranker, tokens)) for n in (0, 20, 40)]
    together = device.split(host, asked)
    alone = [made("split")[1].split(host, [each])[0] for each in asked]
    np.testing.assert_allclose(together, alone, atol=1e-5)


def test_what_was_rehearsed_is_not_captured_when_it_comes(monkeypatch):
    monkeypatch.setattr(split, "LEAST_TOKENS", 16)
    for name, longest in (("split", 40 * 3), ("reach", 4)):
        _, device = made(name)
        device.rehearse(5)
        with monkeypatch.context() as later:
            later.delattr(SplitPasses, "_captured")
            for batch in range(1, RANKINGS + 1):
                for tokens in range(1, longest + 1):
                    device.passes.bucket(batch, 5, tokens)
            with pytest.raises(AttributeError):
                device.passes.bucket(1, 40, 1)


def test_of_users_the_least_recently_used_leave():
    kept = KeptUsers(CPU, 3 * 80, lambda: None)
    of = [np.full((1, 1, 1, 4, 5), n, np.float32) for n in range(5)]
    for n in (0, 1, 2, 0, 3):  # 1 leaves
        assert kept.entry(UserName(bytes([n]), 0), of[n]).unique().tolist() == [n]
    for n, want in ((0, 0), (2, 2), (3, 3), (1, 4)):  # what is there is not copied anew
        assert kept.entry(UserName(bytes([n]), 0), of[4]).unique().tolist() == [want]


def test_of_users_copies_are_kept_also_where_the_device_is_this_cpu():
    """The pool gives a user's place to another one, and his key does not say so."""
    kept, place = KeptUsers(CPU, 1 << 20, lambda: None), np.zeros((1, 1, 1, 4, 5), np.float32)
    kept.entry(UserName(b"a", 0), place)
    place[:] = 1
    assert kept.entry(UserName(b"a", 0), place).max() == 0


def test_of_users_nothing_outlives_a_forgotten_one_or_its_time():
    now = [0.0]
    kept = KeptUsers(CPU, 1 << 20, lambda: None, lambda: now[0])
    old, new = (np.full((1, 1, 1, 4, 5), n, np.float32) for n in (0, 1))
    a, b = UserName(b"a", 5), UserName(b"b", 5)
    kept.entry(a, old), kept.entry(b, old)
    now[0] = TTL_S - 1
    assert kept.entry(a, new).max() == 0
    now[0] = TTL_S
    assert kept.entry(a, new).max() == 1
    assert list(kept._kept) == [b"a"]
    kept.entry(UserName(b"c", 6), old)
    assert list(kept._kept) == [b"c"]
    kept.entry(None, old)
    assert list(kept._kept) == [b"c"]
    kept.entry(UserName(b"", 7), old)
    assert not kept._kept, "of somebody who may not be kept it has learnt that another was forgotten"


HOST = np.random.default_rng(0).standard_normal((9, 2, 1, 3, 4)).astype(np.float32)
NAMES = np.arange(18, dtype=np.uint64).reshape(9, 2)


def check_items(kept, rows, named=True, unchanged=True):
    places = kept.rows(NAMES[rows] if named else None, HOST, np.array(rows), lambda: unchanged)
    got = kept.table[:, places].permute(1, 0, 3, 2, 4)
    np.testing.assert_array_equal(got.numpy(), HOST[rows])
    assert len(kept._rows) + len(kept._spare) == kept.places


def test_of_items_those_that_are_there_are_not_copied(monkeypatch):
    kept = KeptItems(CPU, torch.float32, (2, 1, 3, 4), 5)
    check_items(kept, [0, 1, 2])
    with monkeypatch.context() as patched:
        patched.setattr("genrec.engine.cuda.kept.tensor_of", lambda array: 1 / 0)
        check_items(kept, [2, 0, 0])
        with pytest.raises(ZeroDivisionError):  # of a device without memory, say
            kept.rows(NAMES[[3, 4, 5, 6]], HOST, np.array([3, 4, 5, 6]), lambda: True)
    for rows in ([3, 4, 5, 6, 7], [3, 3, 8, 0], [0, 1, 2, 0], [8, 7, 6, 5, 4]):
        check_items(kept, rows)


@pytest.mark.parametrize(("named", "unchanged"), [(False, True), (True, False)])
def test_items_without_names_or_torn_while_they_were_read_are_not_there(named, unchanged):
    kept = KeptItems(CPU, torch.float32, (2, 1, 3, 4), 5)
    check_items(kept, [0, 1])
    check_items(kept, [2, 3, 4, 5, 6], named, unchanged)
    assert not kept._rows, "the first two had to leave"
    check_items(kept, [0, 2])
    check_items(kept, [2, 3, 4], named, unchanged)
    assert len(kept._rows) == 2
