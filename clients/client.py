"""Connections to a server's ensembles, which the clients that people call are made of."""

from __future__ import annotations

from types import TracebackType
from typing import Any, TypeVar

import tritonclient.grpc
import tritonclient.http

from clients.http_connections import HttpConnections
from clients.wire import (
    TIMEOUT_S,
    Answer,
    InferResult,
    Protocols,
    Question,
    channel_to,
    check_protocol,
    check_timeout,
    check_url,
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

    def __init__(self, url: str, protocol: Protocols = "grpc", *, timeout_s: float = TIMEOUT_S) -> None:
        """`url` is host:port of the protocol, [address]:port for IPv6; nothing is sent yet. Raises InputError."""
        check_protocol(protocol)
        address, timeout_s = check_url(url), check_timeout(timeout_s)
        self.url, self.protocol, self.timeout_s = url, protocol, timeout_s
        self._client: Any
        if protocol == "grpc":
            self._client = tritonclient.grpc.InferenceServerClient(url, channel_args=channel_to(address[0]))
            self._extra: dict[str, Any] = {"client_timeout": timeout_s}
            self._input, self._output = tritonclient.grpc.InferInput, tritonclient.grpc.InferRequestedOutput
        else:
            self._client = HttpConnections(*address, timeout_s)
            self._extra = {}
            self._input, self._output = tritonclient.http.InferInput, tritonclient.http.InferRequestedOutput

    def _ask(self, question: Question[Answer]) -> Answer:
        """What the server answers. Raises BadRequest, Overloaded, Unreachable, TimedOut, ServerError."""
        arguments = question.arguments(self._input, self._output)
        try:
            result: InferResult = self._client.infer(**arguments, **self._extra)
        except Exception as error:
            raise question.failed(error, self.url, self.timeout_s) from error
        return question.read(result)

    def server_name(self) -> str:
        """What the server calls itself: of ours it ends with the artifact and the catalogue. Raises as `_ask`."""
        try:
            metadata = self._client.get_server_metadata(**self._extra)
            return str(metadata.name if self.protocol == "grpc" else metadata["name"])
        except Exception as error:
            raise translate(error, self.url, self.timeout_s) from error

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
