"""One ranking by HSTU for the next item as torch trains it: all events of a user as one sequence."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from genrec.catalogue.items import Catalogue
from genrec.models.prompt import window_start
from genrec.nn.hstu_checkpoint import load_hstu_next
from genrec.nn.hstu_layout import Layout
from genrec.nn.hstu_next import Events, HstuNext


@torch.no_grad()
def next_scores(model: HstuNext, rows: Sequence[int], times: Sequence[int], now: int) -> np.ndarray:
    """float32[I] of all items behind events, `rows` of the catalogue, oldest first."""
    place, seconds = torch.arange(len(rows)), torch.tensor([int(each) for each in times])
    layout = Layout.of(torch.tensor([len(rows)]), place, place, seconds - seconds[0])
    wait = torch.cat((seconds, torch.tensor([now]))).diff()
    return model.scores(Events(layout, torch.tensor([int(row) for row in rows]), wait))[0].numpy()


class NextByTorch:
    """What an artifact's model of the next item answers to requests, everything computed."""

    def __init__(self, artifact: Path) -> None:
        self.model = load_hstu_next(artifact / "model")
        self.catalogue = Catalogue.load(artifact / "catalogue.parquet")

    def __call__(
        self, history: Sequence[int], candidates: Sequence[int], **events: np.ndarray
    ) -> dict[int, float]:
        """Item -> score of every candidate; `events` as tensors of a request."""
        times = events.get("times", np.zeros((1, len(history)), np.int64))[0]
        now = int(events["now"][0, 0]) if "now" in events else int(times[-1])
        start = window_start(len(history), self.model.config.max_history)
        found = next_scores(self.model, self.catalogue.rows_of(history)[start:], times[start:], now)
        return dict(zip(candidates, found[self.catalogue.rows_of(candidates)].tolist(), strict=True))


def times_of(draw: np.random.Generator, count: int) -> dict[str, np.ndarray]:
    """Times and now as tensors, of `count` events."""
    times = 10**9 + np.sort(draw.integers(0, 10**8, count))
    return {"times": times[None], "now": np.array([[10**9 + 10**8 + 5]])}
