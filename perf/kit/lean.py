"""A client for load: it stands for other machines, so it takes as little of this one's cores as it can.

It sends what `clients.aio.AsyncRecommender` sends and raises what that raises, without tritonclient's objects for
every tensor, and looks at an answer only as far as to see that it has all outputs.
"""

from __future__ import annotations

from typing import Any

import grpc
from numpy.typing import ArrayLike
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from clients.errors import ServerError
from clients.request import request_tensors
from clients.wire import OUTPUTS, TIMEOUT_S, channel_to, check_url, translate

INFER = "/inference.GRPCInferenceService/ModelInfer"


class LeanRecommender:
    """Recommendations over one gRPC connection; a context, to be made inside the running loop."""

    def __init__(self, url: str, ensemble: str) -> None:
        """`url` is host:port. Nothing is sent yet."""
        self._url, self._ensemble = url, ensemble
        self._channel = grpc.aio.insecure_channel(url, channel_to(check_url(url)[0]))
        self._infer = self._channel.unary_unary(
            INFER, service_pb2.ModelInferRequest.SerializeToString, service_pb2.ModelInferResponse.FromString
        )

    async def recommend(
        self, history: ArrayLike, top_k: int = 10, *, deadline_ms: int | None = None
    ) -> list[str]:
        """The names of the answer's outputs. Raises as `Recommender.recommend`."""
        request = service_pb2.ModelInferRequest(model_name=self._ensemble)
        for name, tensor in request_tensors(history, top_k, deadline_ms=deadline_ms).items():
            request.inputs.add(name=name, datatype=np_to_triton_dtype(tensor.dtype), shape=tensor.shape)
            request.raw_input_contents.append(tensor.tobytes())
        for name in OUTPUTS:
            request.outputs.add(name=name)
        try:
            answer: Any = await self._infer(request, timeout=TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            known = InferenceServerException(error.details(), str(error.code()))
            raise translate(known, self._url, TIMEOUT_S) from error
        names = [output.name for output in answer.outputs]
        if sorted(names) != sorted(OUTPUTS):
            raise ServerError(f"the answer has the outputs {names}")
        return names

    async def __aenter__(self) -> LeanRecommender:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._channel.close()
