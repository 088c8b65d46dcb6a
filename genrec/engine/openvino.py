"""The generator through OpenVINO on a CPU: tensors are views of the arena, so KV is neither copied in nor out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from genrec.arena import Region, Row
from genrec.errors import ArtifactError
from genrec.kv import Layout


class OpenVinoEngine:
    """Compiled prefill and decode graphs of one process; each graph compiles when it is first used."""

    def __init__(self, folder: Path, layout: Layout, threads: int) -> None:
        """`folder` is `engines/openvino`; `threads` are the cores of this process, 0 for all."""
        self._folder, self.layout, self._threads = Path(folder), layout, threads
        self._core = ov.Core()
        self._core.set_property({"CACHE_DIR": str(self._folder / "cache")})
        self._requests: dict[str, Any] = {}

    def prefill(self, tokens: NDArray[np.int64], lengths: NDArray[np.int64], region: Region) -> None:
        """See `Engine.prefill`."""
        request = self._request("prefill")
        request.set_input_tensor(0, ov.Tensor(tokens, shared_memory=True))
        request.set_input_tensor(1, ov.Tensor(lengths, shared_memory=True))
        request.set_output_tensor(0, ov.Tensor(self.layout.first_logits(region), shared_memory=True))
        for n in range(2 * self.layout.config.num_hidden_layers):
            request.set_output_tensor(n + 1, self._kv(self.layout.shared(region, n)))
        request.infer()

    def decode(self, level: int, codes: NDArray[np.int64], length: int, row: Row) -> None:
        """See `Engine.decode`."""
        layout, width = self.layout, len(codes)
        tensors = range(2 * layout.config.num_hidden_layers)
        request = self._request(f"decode_{level}")
        inputs = [ov.Tensor(codes[None]), ov.Tensor(np.array([length]))]
        inputs += [self._kv(layout.row_shared(row, n)) for n in tensors]
        # the graph's order: per layer, per earlier level, k then v
        for n in range(0, len(tensors), 2):
            inputs += [
                self._kv(layout.past(row, n + kind, u, width)) for u in range(level - 2) for kind in (0, 1)
            ]
        for place, tensor in enumerate(inputs):
            request.set_input_tensor(place, tensor)
        request.set_output_tensor(0, ov.Tensor(layout.logits(row, level, width)[None], shared_memory=True))
        if level < layout.config.levels:
            for n in tensors:
                request.set_output_tensor(n + 1, self._kv(layout.past(row, n, level - 2, width)))
        request.infer()

    def draft_states(self, tokens: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.float32]:
        """See `Engine.draft_states`."""
        request = self._request("prefill_draft")
        request.set_input_tensor(0, ov.Tensor(tokens, shared_memory=True))
        request.set_input_tensor(1, ov.Tensor(lengths, shared_memory=True))
        request.infer()
        states: NDArray[np.float32] = request.get_output_tensor(0).data.copy()
        return states

    def _kv(self, view: NDArray[np.generic]) -> ov.Tensor:
        if self.layout.kv_type == "bf16":
            return ov.Tensor(view, view.shape, ov.Type.bf16)
        return ov.Tensor(view, shared_memory=True)

    def _request(self, name: str) -> Any:
        if name not in self._requests:
            path = self._folder / f"{name}.xml"
            hints = {
                "PERFORMANCE_HINT": "LATENCY",
                "INFERENCE_NUM_THREADS": self._threads,
                "INFERENCE_PRECISION_HINT": self.layout.kv_type,
            }
            try:
                self._requests[name] = self._core.compile_model(
                    str(path), "CPU", hints
                ).create_infer_request()
            except RuntimeError as error:
                raise ArtifactError(path, f"OpenVINO cannot load it: {error}") from error
        return self._requests[name]
