"""The client a person calls: one object for all threads, one method.

    with Recommender("127.0.0.1:8001") as recommender:
        print(recommender.recommend([1193, 661, 914], top_k=10).item_ids)

Nothing is retried behind the caller's back: a retry is load, and only the caller knows whether it is still
wanted. (One exception: over HTTP it is sent again when the kept-alive connection turns out to be closed.)
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

import tritonclient.grpc
import tritonclient.http
from numpy.typing import ArrayLike

from clients.http_connections import HttpConnections
from clients.wire import (
    MODEL,
    OUTPUTS,
    TIMEOUT_S,
    Protocols,
    Recommendation,
    check_protocol,
    check_timeout,
    check_url,
    headers_of,
    infer_inputs,
    parse,
    request_tensors,
    translate,
)


class Recommender:
    """Long-lived connections to the ensemble `recommend`, for as many threads as share it.

    gRPC carries all calls over one connection; HTTP has a connection for each that is under way, and keeps them for
    the next. Keep the client too: one per call pays a handshake every time. Make it in the process that uses it, not
    before a fork. `timeout_s` (seconds) is for a server that does not answer at all: it bounds a call over gRPC, and
    every single wait of a call over HTTP. Do not enforce an SLO with it: it cancels the call, and on Triton 2.51 a
    cancel can bring the server down (H2). Use `deadline_ms`.
    """

    def __init__(
        self, url: str, protocol: Protocols = "grpc", *, timeout_s: float = TIMEOUT_S, model: str = MODEL
    ) -> None:
        """`url` is host:port of the protocol, [address]:port for IPv6; nothing is sent yet. Raises InputError."""
        check_protocol(protocol)
        address, timeout_s = check_url(url), check_timeout(timeout_s)
        self.url, self.protocol, self.timeout_s, self.model = url, protocol, timeout_s, model
        self._client: Any
        if protocol == "grpc":
            self._client = tritonclient.grpc.InferenceServerClient(url)
            self._extra: dict[str, Any] = {"client_timeout": timeout_s}
            self._input, output = tritonclient.grpc.InferInput, tritonclient.grpc.InferRequestedOutput
        else:
            self._client = HttpConnections(*address, timeout_s)
            self._extra = {}
            self._input, output = tritonclient.http.InferInput, tritonclient.http.InferRequestedOutput
        self._outputs = [output(name) for name in OUTPUTS]

    def recommend(
        self,
        history: ArrayLike,
        top_k: int = 10,
        *,
        user_id: int | None = None,
        deadline_ms: int | None = None,
        exclude_history: bool = False,
    ) -> Recommendation:
        """The `top_k` best items after `history` (item ids, oldest first; may be empty).

        `deadline_ms`: the server gives up this many milliseconds after it reads the request. `user_id` also
        travels as header `x-gr-user`, for routers that keep a user on one server.
        Raises InputError (BadRequest when the server found it), Overloaded, Unreachable, TimedOut,
        ServerError.
        """
        tensors = request_tensors(
            history, top_k, user_id=user_id, deadline_ms=deadline_ms, exclude_history=exclude_history
        )
        inputs = infer_inputs(self._input, tensors)
        try:
            result = self._client.infer(
                self.model, inputs, outputs=self._outputs, headers=headers_of(user_id), **self._extra
            )
        except Exception as error:
            raise translate(error, self.url, self.timeout_s) from error
        return parse(result)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def __enter__(self) -> Recommender:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
