"""Connections to a server's ensembles, which the clients that people call are made of."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any, TypeVar

import tritonclient.grpc
import tritonclient.http
from numpy.typing import NDArray

from clients.http_connections import HttpConnections
from clients.wire import (
    OUTPUTS,
    InferResult,
    Protocols,
    check_protocol,
    check_timeout,
    check_url,
    headers_of,
    infer_inputs,
    translate,
)  # fmt: skip

Self = TypeVar("Self", bound="Client")


class Client:
    """Long-lived connections to a server, for as many threads as share it.

    gRPC carries all calls over one connection; HTTP has a connection for each that is under way, and keeps them for
    the next. Keep the client too: one per call pays a handshake every time. Make it in the process that uses it, not
    before a fork. `timeout_s` (seconds) is for a server that does not answer at all: it bounds a call over gRPC, and
    every single wait of a call over HTTP. Do not enforce an SLO with it: it cancels the call, and on Triton 2.51 a
    cancel can bring the server down (H2). Use `deadline_ms`.
    """

    def __init__(self, url: str, protocol: Protocols, timeout_s: float) -> None:
        """`url` is host:port of the protocol, [address]:port for IPv6; nothing is sent yet. Raises InputError."""
        check_protocol(protocol)
        address, timeout_s = check_url(url), check_timeout(timeout_s)
        self.url, self.protocol, self.timeout_s = url, protocol, timeout_s
        self._client: Any
        if protocol == "grpc":
            self._client = tritonclient.grpc.InferenceServerClient(url)
            self._extra: dict[str, Any] = {"client_timeout": timeout_s}
            self._input, self._output = tritonclient.grpc.InferInput, tritonclient.grpc.InferRequestedOutput
        else:
            self._client = HttpConnections(*address, timeout_s)
            self._extra = {}
            self._input, self._output = tritonclient.http.InferInput, tritonclient.http.InferRequestedOutput

    def _ask(
        self,
        model: str,
        tensors: dict[str, NDArray[Any]],
        user_id: int | None,
        traceparent: str | None = None,
        outputs: Sequence[str] = OUTPUTS,
    ) -> InferResult:
        """What the ensemble `model` answers. Raises BadRequest, Overloaded, Unreachable, TimedOut, ServerError."""
        inputs, headers = infer_inputs(self._input, tensors), headers_of(user_id, traceparent)
        try:
            result: InferResult = self._client.infer(
                model,
                inputs,
                outputs=[self._output(name) for name in outputs],
                headers=headers,
                **self._extra,
            )
        except Exception as error:
            raise translate(error, self.url, self.timeout_s) from error
        return result

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
