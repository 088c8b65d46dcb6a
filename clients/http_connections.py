"""HTTP for any number of threads: a pool of connections, each used by one thread at a time.

Bodies and results are tritonclient's, connections the standard library's. Those of tritonclient (geventhttpclient)
belong to the event loop of the thread that made them: shared, they hang, and one client per thread leaves two open
descriptors behind for every thread that ends.
"""

from __future__ import annotations

import json
import threading
from http.client import HTTPConnection, HTTPResponse
from typing import Any
from urllib.parse import quote

from tritonclient.http import InferenceServerClient, InferResult
from tritonclient.utils import InferenceServerException

JSON_LENGTH = "Inference-Header-Content-Length"  # of the JSON before the binary tensors of a body


class HttpConnections:
    """To one server. Idle connections are kept, as many as were ever used at once."""

    def __init__(self, host: str, port: int, timeout_s: float) -> None:
        """Nothing is sent yet. `timeout_s` bounds every single wait for the server."""
        self._address, self._timeout_s = (host, port), timeout_s
        self._lock = threading.Lock()
        self._idle: list[HTTPConnection] | None = []  # None once closed

    def infer(
        self, model_name: str, inputs: list[Any], outputs: list[Any], headers: dict[str, str]
    ) -> InferResult:
        """tritonclient's `infer`. Raises InferenceServerException, OSError, HTTPException, ValueError once closed."""
        body, length = InferenceServerClient.generate_request_body(inputs, outputs=outputs)
        if length is not None:
            headers = {**headers, JSON_LENGTH: str(length)}
        response, answer = self._ask("POST", f"/v2/models/{quote(model_name, safe='')}/infer", body, headers)
        length = response.getheader(JSON_LENGTH)
        return InferenceServerClient.parse_response_body(
            answer, header_length=None if length is None else int(length)
        )

    def get_server_metadata(self) -> Any:
        """tritonclient's. Raises as `infer`."""
        return json.loads(self._ask("GET", "/v2", None, {})[1])

    def _ask(
        self, method: str, path: str, body: bytes | None, headers: dict[str, str]
    ) -> tuple[HTTPResponse, bytes]:
        connection = self._take()
        kept = connection.sock is not None
        try:
            response, answer = self._ask_on(connection, method, path, body, headers)
        except ConnectionError:
            if not kept:
                raise
            # The server had closed it while it was idle: asked once more, on a new one.
            response, answer = self._ask_on(self._new(), method, path, body, headers)
        if response.status != 200:
            raise InferenceServerException(_error_of(answer), str(response.status))
        return response, answer

    def _ask_on(
        self,
        connection: HTTPConnection,
        method: str,
        path: str,
        body: bytes | None,
        headers: dict[str, str],
    ) -> tuple[HTTPResponse, bytes]:
        """Ask, and keep the connection if it brought a whole answer."""
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            answer = response.read()
        except BaseException:
            connection.close()
            raise
        self._give(connection)
        return response, answer

    def _take(self) -> HTTPConnection:
        with self._lock:
            if self._idle is None:
                raise ValueError("the client is closed")
            if self._idle:
                return self._idle.pop()
        return self._new()

    def _new(self) -> HTTPConnection:
        return HTTPConnection(*self._address, timeout=self._timeout_s)

    def _give(self, connection: HTTPConnection) -> None:
        with self._lock:
            if self._idle is not None:
                self._idle.append(connection)
                return
        connection.close()

    def close(self) -> None:
        """Close idle connections now, the others when their answers are in."""
        with self._lock:
            idle, self._idle = self._idle or [], None
        for connection in idle:
            connection.close()


def _error_of(answer: bytes) -> str:
    """The text of Triton's error, or what stands in its place."""
    try:
        return str(json.loads(answer)["error"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return f"no error of Triton's: {answer[:200]!r}"
