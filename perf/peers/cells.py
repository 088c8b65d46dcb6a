"""One cell per system: model, prompt length and beam width; systems take turns, and each has a budget of seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import fmean, median

import numpy as np
from numpy.typing import NDArray

from perf.kit.turns import interleaved
from perf.peers.folder import PeerModel
from perf.peers.refusal import Refusal
from perf.peers.system import Prompts, System, Turn

CONCURRENCY = (1, 4)
TURN_S = 1.5  # what a turn should last; at least one request per client, at most MOST
MOST = 16
REPEAT_S = 6.0  # longer turns are not repeated


@dataclass
class Cell:
    """What was measured of a system, or why it was not. `missing` has the reasons per concurrency."""

    system: str
    model: str
    prompt: int
    width: int
    refusal: str = ""
    out_of_limits: bool = False  # of time or memory: larger cells need not be tried
    over: bool = False  # no more turns: its process may be gone
    missing: dict[int, str] = field(default_factory=dict)
    turns: dict[int, list[Turn]] = field(default_factory=lambda: {c: [] for c in CONCURRENCY})
    cold: Turn | None = None  # the first request: counts only when there was time for no other
    memory: int = 0

    @property
    def latencies(self) -> list[float]:
        """Seconds of requests sent alone."""
        turns = self.turns[1] or ([self.cold] if self.cold and not self.refusal else [])
        return [seconds for turn in turns for seconds in turn.seconds]

    def rates(self, concurrency: int) -> list[float]:
        """Requests per second of each turn."""
        if concurrency == 1 and not self.turns[1]:
            return [1 / seconds for seconds in self.latencies]
        return [turn.rate for turn in self.turns[concurrency]]

    def best_rate(self, concurrencies: Sequence[int] = CONCURRENCY) -> float | None:
        """The better median of these; None when nothing was measured."""
        return max((median(rates) for c in concurrencies if (rates := self.rates(c))), default=None)

    @property
    def answers(self) -> list[NDArray[np.int64]]:
        """Of all requests."""
        turns = [turn for turns in self.turns.values() for turn in turns]
        return [answer for turn in [*turns, *filter(None, [self.cold])] for answer in turn.answers]

    def valid_rate(self) -> float | None:
        """The share of all answers that are items."""
        return float((np.concatenate(self.answers) >= 0).mean()) if self.answers else None

    def distinct(self) -> float | None:
        """Different items per request."""
        return fmean(len(np.unique(a[a >= 0])) for a in self.answers) if self.answers else None

    def compute_s(self, phase: str) -> float | None:
        """Median seconds of a phase per request, where the system tells."""
        told = [turn.compute_s[phase] for turn in self.turns[1] if phase in turn.compute_s]
        return median(told) if told else None

    @property
    def spent_s(self) -> float:
        """Seconds this system has had in the cell."""
        turns = [turn for turns in self.turns.values() for turn in turns]
        return sum(turn.wall_s for turn in [*turns, *filter(None, [self.cold])])


def too_large(cell: Cell, done: Sequence[Cell]) -> str:
    """Why a cell is beyond the limits when a smaller one was; empty when it may be tried."""
    for other in done:
        same = (other.system, other.model) == (cell.system, cell.model)
        if same and other.out_of_limits and other.prompt <= cell.prompt and other.width <= cell.width:
            return f"{other.refusal.partition(' (')[0]} (at {other.prompt} tokens, BW {other.width} already)"
    return ""


def measure(
    systems: Sequence[System], model: PeerModel, prompt: int, width: int, *,
    repeats: int, budget_s: float, done: Sequence[Cell] = (), tell: Callable[[str], None] = lambda _: None,
) -> list[Cell]:  # fmt: skip
    """The cell of every system. A warm-up request each, then `repeats` rounds in which they take turns."""
    cells = [Cell(system.name, model.name, prompt, width) for system in systems]
    pairs = list(zip(systems, cells, strict=True))
    for system, cell in pairs:
        tell(f"{system.name}, first request")
        cell.refusal = too_large(cell, done)
        cell.out_of_limits = bool(cell.refusal)
        if not cell.refusal:
            with _refusing(cell):
                system.start(width)
                cell.cold = system.turn(Prompts.draw(model, prompt, 1, (prompt, width)), width, 1, budget_s)
    for number, (system, cell) in interleaved(pairs, repeats):
        for concurrency in CONCURRENCY:
            tell(f"{system.name}, repeat {number + 1}, {concurrency} at a time")
            _take_turn(system, cell, model, concurrency, number, budget_s)
    for system, cell in pairs:
        if not cell.refusal:
            with _refusing(cell):
                more = Prompts.draw(model, prompt, max(CONCURRENCY), (prompt, width, repeats))
                cell.memory = system.peak_bytes(more, width)
    return cells


def _take_turn(
    system: System, cell: Cell, model: PeerModel, concurrency: int, number: int, budget_s: float
) -> None:
    """One turn: the first one if its time fits in what is left of the budget, a further one if it is short."""
    if cell.refusal or cell.over or concurrency in cell.missing or not cell.cold:
        return
    known = cell.turns[concurrency]
    batch_s = (
        concurrency / known[-1].rate if known else concurrency * min([cell.cold.wall_s, *cell.latencies])
    )
    if number:
        fits = bool(known) and batch_s <= REPEAT_S
    else:
        fits = batch_s <= budget_s - cell.spent_s
        if not fits and concurrency > 1:
            cell.missing[concurrency] = f"> {budget_s:g} s"
    if not fits:
        return
    batches = int(np.clip(TURN_S / batch_s, 1, MOST / concurrency))
    prompts = Prompts.draw(model, cell.prompt, MOST, (cell.prompt, cell.width, number, concurrency))
    try:
        known.append(system.turn(prompts.first(batches * concurrency), cell.width, concurrency, budget_s))
    except Refusal as error:
        cell.over = True
        if concurrency == 1:
            cell.refusal, cell.out_of_limits = error.reason, error.limit
        else:
            cell.missing[concurrency] = error.reason


@contextmanager
def _refusing(cell: Cell) -> Iterator[None]:
    """Writes a Refusal into the cell instead of raising it."""
    try:
        yield
    except Refusal as error:
        cell.refusal, cell.out_of_limits = error.reason, error.limit
