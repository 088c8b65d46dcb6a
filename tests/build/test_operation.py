"""Attention as an operation of OpenVINO, against the float64 oracle."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as op
from openvino.utils.node_factory import NodeFactory

from build.openvino.operations import can_be_compiled
from build.plugin.oracle import xattention as oracle
from tests.build.sets import NUMPY_TYPES, PARAMS, library_of

pytestmark = pytest.mark.skipif(
    not can_be_compiled("f32"), reason="attention stays in OpenVINO's nodes: no g++ or no AVX2"
)
RANKS = {
    "XAttention 3": (4,) * 3, "XAttention 6": (4, 4, 4, 5, 5, 1), "XAttention of items 6": (5, 4, 4, 5, 5, 1),
    "XPast 6": (4, 4, 4, 4, 4, 1),
    "XBehindItems 5": (4, 4, 4, 5, 2), "XDiscriminant 7": (4, 5, 4, 4, 4, 2, 1),
    "XDiscriminant 9": (4, 5, 4, *(5,) * 4, 2, 1),
}  # fmt: skip
LAYER, REACH = 1, 150
HOW = {"XBehindItems": {"layer": LAYER}, "XDiscriminant": {"layer": LAYER, "reach": REACH}}


class Operation(NamedTuple):
    """The operation of one instruction set; `close` is what a result of size 1 may be off by."""

    library: Path
    requests: dict[str, ov.InferRequest]
    dtype: np.dtype
    close: float

    def __call__(self, *inputs, name="XAttention"):
        """Three inputs (causal) or six, in any type: they are rounded to its own."""
        request = self.requests[f"{name} {len(inputs)}"]
        given = [
            np.ascontiguousarray(each, np.int32 if each.dtype.kind == "i" else self.dtype) for each in inputs
        ]
        for place, array in enumerate(given):  # which must live on: a tensor of bf16 does not hold its array
            kind = request.model_inputs[place].get_element_type()
            request.set_input_tensor(
                place, ov.Tensor(array.view(np.uint16) if kind == ov.Type.bf16 else array, array.shape, kind)
            )
        request.infer()
        return request.get_output_tensor(0).data.copy().view(self.dtype).astype(np.float32)

    def draw(self, *shape):
        """`draw`, of values that it does not round."""
        return [
            each.astype(self.dtype).astype(np.float32) if each.dtype == np.float32 else each
            for each in draw(*shape)
        ]


@pytest.fixture(scope="module", params=PARAMS)
def run(request, tmp_path_factory):
    """For every instruction set that this CPU has."""
    path, kv_type = library_of(request.param, tmp_path_factory.mktemp("operation")), request.param.kv_type
    core, nodes = ov.Core(), NodeFactory()
    core.add_extension(str(path))
    nodes.add_extension(str(path))
    requests = {}
    for name, ranks in RANKS.items():
        inputs = [
            op.parameter(ov.PartialShape([-1] * rank), getattr(ov.Type, "i32" if rank < 3 else kv_type))
            for rank in ranks
        ]
        kind = name.split()[0]
        node = nodes.create(kind, [each.output(0) for each in inputs], HOW.get(kind, {}))
        model = ov.Model([node], inputs)
        requests[name] = ov.compile_model(
            model, "CPU", {"INFERENCE_PRECISION_HINT": kv_type}
        ).create_infer_request()
    return Operation(path, requests, NUMPY_TYPES[kv_type], 2e-5 if kv_type == "f32" else 0.01)


def draw(seed, batch, places, heads, kv_heads, size, span, unshared, spread=1.0):
    generator = np.random.default_rng(seed)
    shapes = [
        (batch, places, heads, size),
        *[(batch, kv_heads, span, size)] * 2,
        *[(batch, places, unshared, kv_heads, size)] * 2,
    ]
    tensors = [spread * generator.standard_normal(shape).astype(np.float32) for shape in shapes]
    return [*tensors, generator.integers(1, span + 1, batch).astype(np.int32)]


def causal_truth(q, k, v):
    """Position by position: as a decode step of one beam whose prompt ends there."""
    out = [oracle(q[:, n : n + 1], k, v, *_no_keys(q, k), np.full(len(q), n + 1)) for n in range(q.shape[1])]
    return np.concatenate(out, axis=1)


def _no_keys(q, k):
    return [np.zeros((len(q), 1, 0, k.shape[1], k.shape[3]))] * 2


SHAPES = [  # batch, beams, heads, kv_heads, size, span, unshared: tiles of 16, 24 or 32 rows, blocks of 128 keys
    (1, 1, 1, 1, 8, 1, 1), (2, 12, 4, 2, 16, 127, 1), (1, 12, 2, 1, 32, 128, 2), (3, 25, 2, 2, 8, 129, 3),
    (1, 13, 6, 2, 64, 300, 2), (2, 5, 3, 3, 10, 7, 1), (1, 49, 4, 4, 6, 260, 0), (1, 7, 8, 4, 128, 131, 4),
    (1, 70, 2, 1, 64, 161, 1), (1, 16, 1, 1, 63, 16, 2), (2, 33, 1, 1, 32, 40, 15),
    (2, 5, 16, 1, 32, 40, 3),
]  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("spread", [1.0, 6.0])
def test_a_decode_equals_the_oracle(run, shape, spread):
    case = run.draw(1, *shape, spread)
    for b, length in enumerate(case[-1]):  # what lies behind a prompt is not read
        case[1][b, :, length:] = case[2][b, :, length:] = np.nan
    np.testing.assert_allclose(run(*case), oracle(*case), atol=run.close * spread**2)


OF_ITEMS = [  # batch, items, tokens of an item, heads, kv_heads, size, span
    (1, 1, 1, 1, 1, 8, 1), (2, 7, 3, 2, 1, 16, 20), (1, 5, 15, 6, 1, 64, 200), (2, 3, 17, 4, 2, 10, 129),
    (1, 2, 140, 1, 1, 32, 9),
]  # fmt: skip


@pytest.mark.parametrize("shape", OF_ITEMS)
def test_tokens_of_items_equal_the_oracle_over_the_prompt_and_their_item_up_to_them(run, shape):
    batch, items, tokens, heads, kv_heads, size, span = shape
    q, k, v, _, _, length = run.draw(3, batch, items * tokens, heads, kv_heads, size, span, 0)
    _, _, _, own_k, own_v, _ = run.draw(4, batch, items, heads, kv_heads, size, span, tokens)
    q = q.reshape(batch, items, tokens, heads, size)
    found = run(q, k, v, own_k, own_v, length, name="XAttention of items")
    for token in range(tokens):
        want = oracle(q[:, :, token], k, v, own_k[:, :, : token + 1], own_v[:, :, : token + 1], length)
        np.testing.assert_allclose(found[:, :, token], want, atol=run.close)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_prefill_equals_the_oracle_at_every_position(run, shape):
    batch, _, heads, kv_heads, size, span, _ = shape
    q, k, v, *_ = run.draw(2, batch, span, heads, kv_heads, size, span, 0)
    np.testing.assert_allclose(run(q, k, v), causal_truth(q, k, v), atol=run.close)


PASTS = [  # heads, kv_heads, size, room for a past, its length per request, new tokens
    (2, 2, 8, 7, [5, 0], 3), (4, 2, 32, 260, [128, 256], 40), (2, 1, 64, 210, [200, 3], 130), (6, 2, 10, 1, [1], 300),
    (2, 1, 32, 400, [399], 1),
    (2, 1, 32, 130, [127, 126], 3),  # one key and two of the new ones end a block of the past's
]  # fmt: skip


@pytest.mark.parametrize("shape", PASTS)
def test_tokens_behind_a_past_equal_the_oracle_at_every_position(run, shape):
    """What lies in the past's place behind its end is not read."""
    heads, kv_heads, size, room, lengths, new = shape
    batch = len(lengths)
    q, new_k, new_v, *_ = run.draw(5, batch, new, heads, kv_heads, size, new, 0)
    _, past_k, past_v, *_ = run.draw(6, batch, 1, heads, kv_heads, size, room, 0)
    for b, length in enumerate(lengths):
        past_k[b, :, length:] = past_v[b, :, length:] = np.nan
    found = run(q, past_k, past_v, new_k, new_v, np.array(lengths), name="XPast")
    for b, length in enumerate(lengths):
        one = slice(b, b + 1)
        pasts = past_k[one, :, :length], past_v[one, :, :length]
        want = truth_behind(q[one], *pasts, new_k[one], new_v[one])
        np.testing.assert_allclose(found[one], want, atol=run.close)


def truth_behind(q, past_k, past_v, new_k, new_v):
    """Of tokens behind a past, position by position."""
    length = past_k.shape[2]
    k, v = (np.concatenate(pair, 2) for pair in ((past_k, new_k), (past_v, new_v)))
    behind = np.repeat(q[:, :1], length, 1)  # queries of the past: their results are not looked at
    return causal_truth(np.concatenate((behind, q), 1), k, v)[:, length:]


def items_of(k, v, rows):
    """Items' KV [table, layers, G, tokens, D], of k and v [table, G, tokens, D], NaN but for one layer of `rows`."""
    items = np.full((len(k), 2 * LAYER + 4, *k.shape[1:]), np.nan, np.float32)
    wanted = np.unique(rows)
    items[wanted, 2 * LAYER], items[wanted, 2 * LAYER + 1] = k[wanted], v[wanted]
    return items


def entry_of(k, v):
    """A user's entry [1, 2 layers, G, S, D] of k and v [G, S, D], NaN but for one layer."""
    entry = np.full((1, 2 * LAYER + 4, *k.shape), np.nan, np.float32)
    entry[0, 2 * LAYER], entry[0, 2 * LAYER + 1] = k, v
    return entry


ITEMS = [  # heads, kv_heads, size, tokens of an item, rows per request, new tokens
    (2, 2, 8, 3, [[4, 0, 5]], 3), (4, 2, 32, 15, [list(range(17)), [3] * 17], 40), (2, 1, 64, 1, [[2]], 130),
    (6, 2, 10, 7, [list(range(40))], 30), (2, 1, 128, 64, [[1, 0, 3, 2]], 2),
]  # fmt: skip


@pytest.mark.parametrize("shape", ITEMS)
def test_tokens_behind_items_equal_the_oracle_at_every_position(run, shape):
    """Nothing of other items is read, and of these only one layer."""
    heads, kv_heads, size, tokens, rows, new = shape
    rows = np.array(rows)
    batch, table = len(rows), int(rows.max()) + 3
    q, new_k, new_v, *_ = run.draw(7, batch, new, heads, kv_heads, size, new, 0)
    _, drawn_k, drawn_v, *_ = run.draw(8, table, 1, heads, kv_heads, size, tokens, 0)
    items = items_of(drawn_k, drawn_v, rows)
    found = run(q, new_k, new_v, items, rows, name="XBehindItems")
    for b, mine in enumerate(rows):
        one = slice(b, b + 1)
        pasts = (np.concatenate(list(each[mine]), 1)[None] for each in (drawn_k, drawn_v))
        want = truth_behind(q[one], *pasts, new_k[one], new_v[one])
        np.testing.assert_allclose(found[one], want, atol=run.close)


DISCRIMINANTS = [  # heads, kv_heads, size, span, how much of it per request, tokens of an item, candidates
    (2, 2, 8, 7, [5, 7], 3, 4), (4, 2, 32, 310, [310, 301, 150, 7], 1, 40), (2, 1, 64, 152, [152, 149], 15, 3),
    (6, 2, 10, 280, [280], 2, 30), (1, 1, 64, 30, [30], 15, 40),
    (16, 1, 64, 30, [30], 60, 4),
]  # fmt: skip


@pytest.mark.parametrize("entries", [False, True])
@pytest.mark.parametrize("shape", DISCRIMINANTS)
def test_discriminant_tokens_equal_the_oracle_over_what_they_reach(run, shape, entries):
    """Neither keys before it nor those behind the prompt are read, nor other items and layers; keys and values in
    one tensor each, or every prompt an entry of its own, as long as it is.
    """
    heads, kv_heads, size, span, lengths, tokens, many = shape
    batch, table = len(lengths), 2 * many
    q, k, v, *_ = run.draw(9, batch, many, heads, kv_heads, size, span, 0)
    _, drawn_k, drawn_v, *_ = run.draw(10, table, 1, heads, kv_heads, size, tokens, 0)
    rows = np.random.default_rng(11).permutation(batch * table)[: batch * many].reshape(batch, many) % table
    items = items_of(drawn_k, drawn_v, rows)
    first = [max(length - REACH, 0) for length in lengths]
    for b, length in enumerate(lengths):
        for each in (k, v):
            each[b, :, : first[b]] = each[b, :, length:] = np.nan
    users = [k, v]
    if entries:  # of four, whoever there is
        ends = [max(length, 1) + b for b, length in enumerate(lengths)]
        users = [entry_of(k[b, :, :end], v[b, :, :end]) for b, end in enumerate(ends)]
        users += [entry_of(k[0, :, :0], v[0, :, :0])] * (4 - len(users))
    own_q = run.draw(12, batch, many, heads, kv_heads, size, 1, 0)[0]
    found = run(q, items, own_q, *users, rows, np.array(lengths), name="XDiscriminant")
    for b, length in enumerate(lengths):
        one = slice(b, b + 1)
        own_k, own_v = (each[rows[b]].transpose(0, 2, 1, 3)[None] for each in (drawn_k, drawn_v))
        seen = (each[one, :, first[b] : length] for each in (k, v))
        both = 2**0.5 * np.concatenate(
            (q[one], own_q[one]), -1
        )  # each meets its own keys: the others' half is zeros
        shared_k, shared_v, own_v = (np.concatenate((each, 0 * each), -1) for each in (*seen, own_v))
        own_k = np.concatenate((0 * own_k, own_k), -1)
        want = oracle(both, shared_k, shared_v, own_k, own_v, np.array([length - first[b]]))[..., :size]
        np.testing.assert_allclose(found[one], want, atol=run.close)


def test_a_row_that_no_item_has_is_refused(run):
    q, new_k, new_v, *_ = run.draw(7, 1, 3, 2, 2, 8, 3, 0)
    with pytest.raises(RuntimeError, match="XBehindItems: row 5 of 5"):
        run(q, new_k, new_v, np.zeros((5, 6, 2, 3, 8)), np.array([[0, 5]]), name="XBehindItems")


def test_scores_of_any_size_are_right_and_nan_is_not_hidden(run):
    q, k, v, own_k, own_v, _ = run.draw(3, 1, 30, 2, 2, 8, 200, 1)
    length = np.array([200], np.int32)
    np.testing.assert_allclose(
        run(256 * q, k, v, own_k, own_v, length),
        oracle(256 * q, k, v, own_k, own_v, length),
        atol=50 * run.close,
    )
    np.testing.assert_allclose(
        run(0 * q, k, v, own_k, own_v, length), oracle(0 * q, k, v, own_k, own_v, length), atol=run.close
    )
    k[0, 1, 3] = np.nan
    found = run(q, k, v, own_k, own_v, length)
    assert np.isnan(found[:, :, 1]).all() and np.isfinite(found[:, :, 0]).all()


def test_whole_blocks_of_higher_scores_and_of_nan_are_found(run):
    """The highest score is looked for only where weights do not fit."""
    q, k, v, *own = run.draw(4, 1, 30, 2, 2, 8, 384, 1)
    length = np.array([384], np.int32)
    k[:, :, 128:256] *= 8  # twice as high as there is room for, in either direction
    k[:, :, 256:] *= 64
    given = q, k, v, *own[:2], length
    np.testing.assert_allclose(run(*given), oracle(*given), atol=8 * run.close)
    k[0, 1, 300] = np.nan
    found = run(*given)
    assert np.isnan(found[:, :, 1]).all() and np.isfinite(found[:, :, 0]).all()


def test_what_the_shapes_cannot_be_is_refused(run):
    nodes = NodeFactory()
    nodes.add_extension(str(run.library))
    inputs = [op.parameter([1, 2, 2, 8], np.float32) for _ in range(4)]
    with pytest.raises(RuntimeError, match="4 inputs, not 3 or 6"):
        nodes.create("XAttention", [each.output(0) for each in inputs])
    whole = [op.parameter([1, 2, 2, 8], np.float16) for _ in range(3)]
    with pytest.raises(RuntimeError, match=r"input 0 is not (f32|bf16)"):
        nodes.create("XAttention", [each.output(0) for each in whole])
