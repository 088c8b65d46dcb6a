"""How a row learns: row-wise Adagrad, or Adam with a step count of its own. State lies beside the row."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from training.embedding.arrays import Chunks, Float32, Int32
from training.embedding.kernels import Kernels


@dataclass(frozen=True)
class RowwiseAdagrad:
    """One sum of mean squared gradients per row, as FBGEMM's: w -= rate g / (sqrt(sum) + epsilon)."""

    rate: float = 0.01
    epsilon: float = 1e-8

    def width(self, dimension: int) -> int:
        """Numbers of state per row."""
        return 1

    def update(
        self, kernels: Kernels, values: Chunks, state: Chunks, places: Int32, rows: Int32, gradients: Float32,
        scale: float,
    ) -> None:  # fmt: skip
        """One step of distinct rows [n] by gradients float32[n, dim] times `scale`; vectors are at `places` [n]."""
        kernels.adagrad(values, state, places, rows, gradients, (scale, self.rate, self.epsilon))


@dataclass(frozen=True)
class RowAdam:
    """Adam (Kingma and Ba); a row that is not in a batch stands still, and its bias correction with it.

    `decay` is apart from the gradient, as AdamW's. With `averaging` above 0 a moving average of the vector lies in the
    state: early on it spans a tenth of the row's steps, later its decay is `averaging`.
    """

    rate: float = 0.001
    epsilon: float = 1e-8
    beta1: float = 0.9
    beta2: float = 0.999
    decay: float = 0.0
    averaging: float = 0.0

    def width(self, dimension: int) -> int:
        """First and second moments, the steps of the row, and where asked for the average."""
        return 2 * dimension + 1 + (dimension if self.averaging else 0)

    def averages(self, state: Float32, dimension: int) -> Float32:
        """float32[n, dim] out of states [n, width]; only with `averaging`."""
        return state[:, 2 * dimension + 1 :]

    def update(
        self, kernels: Kernels, values: Chunks, state: Chunks, places: Int32, rows: Int32, gradients: Float32,
        scale: float,
    ) -> None:  # fmt: skip
        """One step of distinct rows [n] by gradients float32[n, dim] times `scale`; vectors are at `places` [n]."""
        settings = (self.rate, self.epsilon, self.beta1, self.beta2, self.decay, self.averaging)
        kernels.adam(values, state, places, rows, gradients, (scale, *settings))


Optimizer = RowwiseAdagrad | RowAdam


def as_json(optimizer: Optimizer) -> dict[str, object]:
    """Its name and settings, for a checkpoint."""
    return {"name": type(optimizer).__name__, **asdict(optimizer)}
