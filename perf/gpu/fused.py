"""The fused kernels against their twin in torch: shapes odd and usual, every type, what is not finite, ties.

The twin computes in float32 what a kernel computes of the same 16-bit numbers, so that a tolerance is of one rounding
or two. What a kernel is to leave alone is compared too. Selection is compared exactly, but for the last bits of scores.

python -m perf.gpu.fused LIBRARY      # on small shapes: what compute-sanitizer runs
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from genrec.engine.cuda.beams import DeviceBeams, DeviceTree, expand, first_beams
from genrec.engine.cuda.fused import FusedOperations
from genrec.engine.cuda.operations import Operations, TorchOperations
from genrec.engine.cuda.tree_room import TreeRoom
from perf.gpu.requests import random_tree

TOLERANCE = {torch.float32: 1e-6, torch.float16: 5e-4, torch.bfloat16: 4e-3}  # of the norm
SCORES = 1e-5  # by which scores may differ: torch's exp and the kernel's are off by a last bit each
EPS = 1e-2  # so much that it shows
TWIN = TorchOperations()


@dataclass(frozen=True)
class Heads:
    """B, X, H, G, D; whether heads are normed; unshared tokens U where k and v are beams' own, 0 for a prompt's."""

    batch: int
    positions: int
    heads: int
    kv_heads: int
    size: int
    normed: bool
    unshared: int


@dataclass(frozen=True)
class Selection:
    """B, the levels' sizes, items, W; the share of nodes that are blocked; how many values logits have.

    These are a power of 2: then differences are exact, and what ties does so whatever computes it.
    """

    batch: int
    sizes: tuple[int, ...]
    items: int
    width: int
    blocked: float
    values: int


HEADS = [
    Heads(2, 5, 4, 2, 16, True, 0),
    Heads(1, 7, 3, 1, 10, True, 2),  # halves of five elements
    Heads(2, 3, 5, 5, 6, False, 1),
    Heads(2, 3, 4, 0, 128, True, 0),  # queries alone
    Heads(2, 2, 0, 3, 64, True, 0),  # keys and values alone
    Heads(1, 3, 2, 1, 256, True, 3),
]
ROWS = [(1, 1), (3, 7), (2, 64), (5, 1030), (2, 2048)]  # rows, their size
SELECTIONS = [
    Selection(3, (5, 4, 3), 30, 7, 0.0, 4),
    Selection(2, (12, 9, 7), 300, 40, 0.3, 4),
    Selection(2, (3, 70, 2), 200, 64, 0.9, 2),  # most are blocked: fewer candidates than beams
    Selection(1, (40, 33), 600, 200, 0.1, 1024),
    Selection(2, (6, 1, 5), 20, 50, 0.2, 8),  # only children
]
LARGE = (
    [*HEADS, Heads(1, 1000, 16, 8, 128, True, 0), Heads(8, 256, 16, 8, 128, True, 2)],
    [*ROWS, (2048, 2048), (256, 6144)],
    [*SELECTIONS, Selection(8, (256, 256, 256), 1_000_000, 256, 0.01, 64)],
)


def check(library: Path, device: torch.device, small: bool) -> float:
    """Every kernel, case and type; the worst error over its tolerance. AssertionError on the first that is wrong."""
    fused, worst = FusedOperations(library, device), 0.0
    heads, rows, selections = (HEADS, ROWS, SELECTIONS) if small else LARGE
    for dtype in TOLERANCE:
        worst = max(worst, *(check_heads(fused, device, dtype, case) for case in heads))
        for case in heads:
            if case.unshared:
                check_inherit(fused, device, dtype, case)
        for shape in rows:
            worst = max(worst, check_norm(fused, device, dtype, *shape))
            worst = max(worst, check_swiglu(fused, device, dtype, *shape))
    for case in selections:
        for _ in range(2):  # the second launch finds the counters as the first left them
            check_selection(fused, device, case)
    return worst


def error(got: Tensor, want: Tensor, what: object) -> float:
    """The difference's norm over that of `want`, over the tolerance; what is not finite must be the same in both.

    Raises AssertionError above 1.
    """
    tolerance, got, finite = TOLERANCE[got.dtype], got.float(), want.isfinite()
    assert torch.equal(got.isfinite(), finite), f"{what}: other elements are finite"
    odd = [x[~finite].nan_to_num(0.0, 1.0, -1.0) for x in (got, want)]
    assert torch.equal(*odd), f"{what}: NaN and infinity are in other places"
    got, want = got[finite], want[finite]
    found = float((got - want).norm() / want.norm().clamp(min=1e-30)) / tolerance
    assert found <= 1, f"{what}: {found} times the error that is allowed"
    return found


def check_heads(fused: Operations, device: torch.device, dtype: torch.dtype, case: Heads) -> float:
    """q, and all of the memory in which k and v lie, full of NaN before."""
    columns = (case.heads + 2 * case.kv_heads) * case.size
    product = _random(device, dtype, case.batch, case.positions, columns)
    weights = _random(device, dtype, 2, case.size) + 1
    # A prompt's positions are those of all requests; beams of a request stand at one; queries alone where they like.
    rows = case.batch if case.unshared or not case.kv_heads else 1
    tables = _random(device, dtype, 2, rows, 1 if case.unshared else case.positions, 1, case.size // 2)
    found = []
    for do, of in ((fused, dtype), (TWIN, torch.float32)):
        k, v, rooms = _rooms(case, device, of)
        norms = (weights[0].to(of), weights[1].to(of)) if case.normed else None
        q = do.heads(product.to(of), norms, EPS, (tables[0].to(of), tables[1].to(of)), k, v)
        found.append((q, *rooms))
    return max(error(got, want, (case, dtype)) for got, want in zip(*found, strict=True) if want.numel())


def _rooms(case: Heads, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """k and v as views [B, X, G, D] of one memory, which is of NaN: the prompt's, or the last of the beams' own."""
    batch, positions, kv_heads, size = case.batch, case.positions, case.kv_heads, case.size
    if case.unshared:
        room = torch.full(
            (2, batch, positions, case.unshared, kv_heads, size), torch.nan, dtype=dtype, device=device
        )
        return room[0][:, :, -1], room[1][:, :, -1], room[None]
    room = torch.full((2, batch, kv_heads, positions, size), torch.nan, dtype=dtype, device=device)
    return room[0].transpose(1, 2), room[1].transpose(1, 2), room[None]


def check_inherit(fused: Operations, device: torch.device, dtype: torch.dtype, case: Heads) -> None:
    """Exactly what torch copies, and nothing behind it: the room is full of ones before."""
    width = 2 * case.positions
    own = _random(device, dtype, 4, case.batch, case.positions, case.unshared, case.kv_heads, case.size)
    parents = torch.randint(case.positions, (case.batch, width), device=device)
    shape = 4, case.batch, width, case.unshared + 1, case.kv_heads, case.size
    rooms = [torch.ones(shape, dtype=dtype, device=device) for _ in range(2)]
    for do, room in zip((fused, TWIN), rooms, strict=True):
        do.inherit(own, parents, room)
    assert torch.equal(*rooms), f"{case}, {dtype}: inherited tokens"


def check_norm(fused: Operations, device: torch.device, dtype: torch.dtype, rows: int, size: int) -> float:
    """With a residual and without, of which the sum is rounded before the norm; rows with NaN and infinity."""
    x, y = _random(device, dtype, 2, rows, size)
    x[-1, -1], worst = torch.inf, 0.0
    y[rows // 2, 0] = torch.nan
    weight = _random(device, dtype, size)
    for added in (y, None):
        total = x if added is None else x + added
        # Not by torch's own: on a GPU that makes NaN of a whole row in which one number is infinite.
        want = total.float() * (total.float().square().mean(-1, keepdim=True) + EPS).rsqrt() * weight.float()
        got_sum, got = fused.add_norm(x.clone(), added, weight, EPS)
        assert torch.allclose(got_sum, total, rtol=0, atol=0, equal_nan=True), (rows, size, dtype)
        worst = max(worst, error(got, want, (rows, size, dtype)))
    return worst


def check_swiglu(fused: Operations, device: torch.device, dtype: torch.dtype, rows: int, size: int) -> float:
    """Of gates from -60 to 60, NaN and infinity."""
    x = _random(device, dtype, rows, 2 * size) * 20
    for place, value in enumerate((torch.nan, torch.inf, -torch.inf)):
        x[-1, place % (2 * size)] = value
    return error(fused.swiglu(x), TWIN.swiglu(x.float()), ("swiglu", rows, size, dtype))


def check_selection(fused: Operations, device: torch.device, case: Selection) -> None:
    """All levels, one after the other; some logits -inf. Beams and their order are the twin's, dead ones too.

    The tree has room, as where graphs read it.
    """
    tree = TreeRoom(random_tree(case.sizes, case.items, device)).tree
    mine = theirs = first_beams(case.batch, device)
    for level, width in enumerate(tree.beam_counts(case.width), 1):
        logits = _coarse(case, device, case.batch, mine.nodes.shape[1], case.sizes[level - 1])
        only = tree.pointers[level - 1].diff()[mine.nodes.clamp(min=0)] == 1
        logits = logits.masked_fill(only.unsqueeze(-1), torch.nan)  # an only child's logit is not looked at
        blocked = torch.rand(case.batch, len(tree.codes[level - 1]), device=device) < case.blocked
        which = blocked if case.blocked else None
        mine = fused.expand(tree, level, logits, mine, width, which)
        theirs = expand(tree, level, logits, theirs, width, which)
        hold_equal(mine, theirs, f"{case}, level {level}")
    check_bad(fused, tree, device, case)


def check_bad(fused: Operations, tree: DeviceTree, device: torch.device, case: Selection) -> None:
    """A request with NaN or +inf at a valid code says so, and another one does not."""
    for value in (torch.nan, torch.inf):
        logits = torch.zeros(2, 1, case.sizes[0], device=device)
        logits[1, 0, tree.codes[0][0]] = value
        for given in (logits, logits.flip(0)):
            args = tree, 1, given, first_beams(2, device), tree.beam_counts(case.width)[0], None
            assert torch.equal(fused.expand(*args).bad, expand(*args).bad), f"{case}: bad logits"


def hold_equal(mine: DeviceBeams, theirs: DeviceBeams, what: str) -> None:
    """Raises AssertionError where anything differs, but for the last bits of scores."""
    for name in ("paths", "nodes", "parents", "bad"):
        assert torch.equal(getattr(mine, name), getattr(theirs, name)), f"{what}: {name}"
    assert torch.allclose(mine.scores, theirs.scores, rtol=0, atol=SCORES), f"{what}: scores"


def _random(device: torch.device, dtype: torch.dtype, *shape: int) -> Tensor:
    return torch.randn(*shape, device=device).to(dtype)


def _coarse(case: Selection, device: torch.device, *shape: int) -> Tensor:
    """Logits of few values, so that ties are many; a tenth is -inf, and all those of some beams."""
    logits = torch.randint(case.values, shape, device=device).float() * 8 / case.values
    logits = logits.masked_fill(torch.rand(shape, device=device) < 0.1, -torch.inf)
    return logits.masked_fill(torch.rand(*shape[:2], 1, device=device) < 0.1, -torch.inf)


if __name__ == "__main__":
    torch.manual_seed(0)
    check(Path(sys.argv[1]), torch.device("cuda"), small=True)
