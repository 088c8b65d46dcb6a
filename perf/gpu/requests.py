"""Whole requests on a GPU: constrained generation over a catalogue of a million items, and its parts.

The shape is that of NVIDIA's published figures for SID-GR (Qwen3-1.7B, beam width 256, three levels, an H100):
17.6 ms at S = 1,000 and batch 1, 93.2 at batch 8, 42.3 and 307.9 at S = 5,000 - unconstrained. Ours here is
constrained, on random weights: time does not depend on what the weights say.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from genrec.engine.cuda.beams import DeviceTree, expand, first_beams
from genrec.engine.cuda.forward import Attend, Forward
from genrec.engine.cuda.generate import DeviceGenerator
from genrec.engine.cuda.operations import Operations
from genrec.engine.interface import BringPrompt
from genrec.models.config import ModelConfig
from genrec.nn.model import Generator
from perf.gpu.pool_memory import pool_memory
from perf.gpu.reference import Reference, check_answers, check_passes
from perf.gpu.timing import graphed, median_ms, median_wall_ms

THEIRS_MS = {"s1000_b1": 17.6, "s1000_b8": 93.2, "s5000_b1": 42.3, "s5000_b8": 307.9}
SHORT = 24  # tokens of the prompts whose whole answers are checked
GOALS_MS = {"s1000_b1": 10.0, "s1000_b8": 60.0, "s5000_b1": 28.0, "s5000_b8": 230.0}


@dataclass(frozen=True)
class Setting:
    """A model's shape, the catalogue's size, the beam width, the (S, B) to time, and how long through Triton.

    There `served` requests come one at a time, and B at once go on for `seconds`.
    """

    config: ModelConfig
    items: int
    width: int
    points: tuple[tuple[int, int], ...]
    served: int  # requests through the server, one after the other
    seconds: float  # of requests at once


FULL = Setting(
    ModelConfig((256, 256, 256), max_history=2000, hidden_size=2048, num_hidden_layers=28, num_attention_heads=16,
                num_key_value_heads=8, head_dim=128, intermediate_size=6144, rope_theta=1e6),
    1_000_000, 256, ((1000, 1), (1000, 8), (5000, 1), (5000, 8)), 60, 10.0,
)  # fmt: skip
DRY = Setting(
    ModelConfig((16, 16, 16), max_history=20, hidden_size=32, head_dim=16), 500, 8, ((12, 1), (12, 2)), 4, 1.0
)


class NothingBlocked:
    """Of a request that excludes nothing; in the place of genrec.catalogue.blocked.Blocked, which needs numba."""

    def at(self, level: int) -> NDArray[np.int32]:
        """No node."""
        return np.empty(0, np.int32)

    def open_at(self, level: int) -> None:
        """All nodes are."""


def random_tree(sizes: tuple[int, ...], items: int, device: torch.device, seed: int = 0) -> DeviceTree:
    """A catalogue of `items` distinct random semantic IDs as the tree that `genrec.catalogue.validity` would build."""
    draw, total = np.random.default_rng(seed), int(np.prod(sizes))
    nodes = np.sort(draw.choice(total, items, replace=False))
    pointers, codes = [], []
    for size in reversed(sizes):
        parents, digits = np.divmod(nodes, size)
        nodes, starts = np.unique(parents, return_index=True)
        pointers.insert(0, torch.tensor(np.append(starts, len(parents)), device=device))
        codes.insert(0, torch.tensor(digits, device=device))
    return DeviceTree(sizes, pointers, codes, [int(p.diff().max()) for p in pointers])


def items_of(tree: DeviceTree) -> NDArray[np.int64]:
    """The paths of all items; `tree` may have room for more."""
    path = np.zeros(1, np.int64)
    for size, pointers, codes in zip(tree.sizes, tree.pointers, tree.codes, strict=True):
        counts = pointers.diff().cpu().numpy()[: len(path)]
        path = np.repeat(path, counts) * size + codes.cpu().numpy()[: counts.sum()]
    return path


def random_weights(setting: Setting, device: torch.device) -> Generator:
    """Made on the device, in bf16; the same every time."""
    torch.manual_seed(0)
    with device:
        return Generator(setting.config).to(torch.bfloat16).eval()


def make_generator(
    setting: Setting, attend: Attend, device: torch.device, operations: Operations | None = None
) -> DeviceGenerator:
    """Requests over random weights and a random catalogue, the attention of decode steps by `attend`.

    Without `operations` torch does what is between products, and beam search.
    """
    tree = random_tree(setting.config.codebook_sizes, setting.items, device)
    forward = Forward(random_weights(setting, device), attend, operations)
    return DeviceGenerator(forward, tree, setting.width)


def requests_of(
    setting: Setting, span: int, batch: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], list[Any]]:
    """Random prompts of S // L whole items for B requests: tokens, lengths, what they block."""
    length = prompt_tokens(setting, span)
    tokens = np.random.default_rng(span + batch).integers(0, setting.config.vocab_size, (batch, length))
    return tokens, np.full(batch, length), [NothingBlocked()] * batch


def prompt_tokens(setting: Setting, span: int) -> int:
    """A history of whole items makes the prompt: 999 tokens of 1,000 at three levels."""
    return span // setting.config.levels * setting.config.levels


def check_reference(generator: DeviceGenerator, setting: Setting) -> dict[str, Any]:
    """Logits of every pass and the answers of requests against the generator in float32. AssertionError where wrong.

    Two prompts of a batch, one of them padded: short ones, where a token more or less counts most, and long ones. A
    reference of whole answers scores every beam over its whole sequence, so short prompts must do for these.
    """
    device = generator.forward.device
    reference = Reference(random_weights(setting, device).float(), generator.tree)
    errors: dict[str, Any] = {}
    for span in (min(SHORT, setting.points[0][0]), setting.points[0][0]):
        tokens, _, blocked = requests_of(setting, span, 2)
        lengths = np.array([tokens.shape[1], max(span // 3, 1)])
        given = torch.from_numpy(tokens).to(device), torch.from_numpy(lengths).to(device)
        errors[f"logits_s{span}"] = check_passes(generator, reference, *given)
        if span <= SHORT:
            found = generator.generate(tokens, lengths, blocked)
            dtype = generator.forward.dtype
            errors[f"scores_s{span}"] = check_answers(reference, *given, found, generator.counts, dtype)
    return errors


def check(generator: DeviceGenerator, setting: Setting) -> float:
    """Answers are items, distinct, all there, and the same twice; beam search is that of the CPU. Share alive.

    And other catalogue versions are answered from by the same graphs.
    """
    span, batch = setting.points[0][0], setting.points[-1][1]
    tokens, lengths, blocked = requests_of(setting, span, batch)
    found = generator.generate(tokens, lengths, blocked)
    again = generator.generate(tokens, lengths, blocked)
    tree, sizes = generator.tree, setting.config.codebook_sizes
    assert np.array_equal(found.paths, again.paths), "two runs differ"
    assert np.isin(found.paths[found.alive], items_of(tree)).all(), "an answer is not an item"
    assert all(len(np.unique(row)) == len(row) for row in found.paths), "beams repeat"
    host = DeviceTree(
        sizes, *([x.cpu() for x in part] for part in (tree.pointers, tree.codes)), tree.families
    )
    logits = torch.randn(batch, 1, sizes[0], device=tree.codes[0].device).round()
    sides = [
        by(t, 1, logits.to(d), first_beams(batch, d), generator.counts[0], None)
        for by, t, d in (
            (generator.forward.operations.expand, tree, logits.device),
            (expand, host, torch.device("cpu")),
        )
    ]
    assert torch.equal(sides[0].nodes.cpu(), sides[1].nodes), "selection differs from the CPU's"
    check_versions(generator, setting)
    return float(found.alive.mean())


def check_versions(generator: DeviceGenerator, setting: Setting) -> None:
    """Of catalogues with more and fewer items, and the first one again, by graphs that are there. AssertionError."""
    asked = requests_of(setting, setting.points[0][0], setting.points[-1][1])
    sizes, device = setting.config.codebook_sizes, generator.forward.device
    first, captured = generator.generate(*asked), generator.captured
    for seed, items in ((1, setting.items * 103 // 100), (2, setting.items * 97 // 100), (0, setting.items)):
        tree = random_tree(sizes, items, device, seed)
        generator.use(tree)
        found = generator.generate(*asked)
        assert np.isin(found.paths[found.alive], items_of(tree)).all(), "an answer is another version's"
    assert generator.captured == captured, "a catalogue version needed graphs of its own"
    for name in ("paths", "scores"):
        assert np.array_equal(getattr(found, name), getattr(first, name)), f"{name} are not as before"


class Entries:
    """Where a pool has the KV of B prompts of S tokens."""

    def __init__(self, config: ModelConfig, batch: int, length: int) -> None:
        c = config
        shape = batch, 2 * c.num_hidden_layers, c.num_key_value_heads, length, c.head_dim
        self.memory = pool_memory(shape)

    def show(self, row: int, bring: BringPrompt) -> None:
        """See `Executor.answers`."""
        bring(self.memory[row])


def measure(
    generator: DeviceGenerator, setting: Setting, span: int, batch: int, rates: Mapping[str, float | None]
) -> dict[str, Any]:
    """One (S, B): the request as a caller waits for it, its parts on the device, prefill's shares of rates by name.

    `kept_ms`: where KV of all prompts goes to the pool's memory, for the rankings behind them.
    """
    device, forward = generator.forward.device, generator.forward
    arguments = requests_of(setting, span, batch)
    entries = Entries(setting.config, *arguments[0].shape)
    whole = median_wall_ms(lambda: generator.generate(*arguments), device)
    kept = median_wall_ms(lambda: generator.generate(*arguments, prompts=entries.show), device)
    bucket = generator.prepare(*arguments[0].shape)
    tokens, lengths = bucket.tokens, bucket.lengths
    parts = {"prefill": median_ms(graphed(lambda: forward.prefill(tokens, lengths), device), device)}
    logits, shared = forward.prefill(tokens, lengths)
    beams, own = first_beams(batch, device), None
    parts["decode"] = parts["selection"] = 0.0
    for level, count in enumerate(generator.counts, 1):
        if level > 1:
            former, codes = own, beams.paths % generator.tree.sizes[level - 2]
            step = _decode(generator, level, codes, lengths, shared, former, beams.parents)
            parts["decode"] += median_ms(graphed(step, device), device)
            logits, own = step()
        select = _select(generator, level, logits, beams, count, bucket.blocked[level - 1])
        parts["selection"] += median_ms(graphed(select, device), device)
        beams = select()
    flops = prefill_operations(setting.config, prompt_tokens(setting, span), batch)
    return {
        "ms": whole,
        "kept_ms": kept,
        "tokens": prompt_tokens(setting, span),
        "padded_to": bucket.tokens.shape[1],
        "parts_ms": {**parts, "gaps": whole - sum(parts.values())},
        "prefill_share_of": {
            name: rate and 1e3 * flops / parts["prefill"] / rate for name, rate in rates.items()
        },
    }


def _decode(generator, level, codes, lengths, shared, own, parents):  # type: ignore[no-untyped-def]
    def step():  # type: ignore[no-untyped-def]
        room = generator.inherit(own, parents)
        return generator.forward.decode(level, codes, lengths, shared, room), room

    return step


def _select(generator, level, logits, beams, count, blocked):  # type: ignore[no-untyped-def]
    do = generator.forward.operations
    return lambda: do.expand(generator.tree, level, logits, beams, count, blocked)


def prefill_operations(config: ModelConfig, span: int, batch: int) -> int:
    """Floating-point operations of a prefill: the layers' matrices, and causal attention (half of S x S).

    The last layer makes k and v of all positions, the rest of one.
    """
    heads = config.num_attention_heads * config.head_dim
    kv = 2 * config.hidden_size * config.num_key_value_heads * config.head_dim
    rest = config.hidden_size * (2 * heads + 3 * config.intermediate_size)
    whole = config.num_hidden_layers - 1
    return batch * (
        2 * span * (kv + whole * (kv + rest)) + 2 * rest + whole * 2 * heads * span * span + 4 * heads * span
    )
