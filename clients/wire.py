"""What the clients share: a question to Triton, its answer as a Recommendation, Triton's errors as ours.

The ensemble's signature is in docs/contracts.md. Every tensor has Triton's leading batch axis of 1.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http.client import BadStatusLine, HTTPException
from ipaddress import IPv6Address, ip_address
from typing import Any, Generic, Literal, Protocol, TypeVar, get_args

import aiohttp
import numpy as np
from numpy.typing import NDArray
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from clients.errors import BadRequest, Overloaded, ServerError, TimedOut, Unreachable
from clients.request import GroupNames, by_name
from genrec.errors import GenrecError, InputError
from genrec.report import POPULARITY, Report

MODEL = "recommend"
OUTPUTS = ("item_ids", "scores", "report")
TRACE_HEADER = "traceparent"
USER_HEADER = "x-gr-user"  # what a router hashes; gRPC metadata keys are lower case
# Far above any P99. On 2.51 a client timeout is a cancel, and a cancel that races with the answer can bring
# the server down (H2). An SLO is enforced with `deadline_ms`, which the server itself keeps.
TIMEOUT_S = 60.0
# Left alone gRPC waits ever longer between its tries to connect, two minutes in the end: a server that is back would be
# away for as long. Lengths of messages are tritonclient's own, which these take the place of.
CHANNEL = [
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
]
MAX_TIMEOUT_S = 86_400  # a day; sockets count no further than some 290 years
MAX_PORT = 65_535

Protocols = Literal["grpc", "http"]
_PREFIX = re.compile(r"^(\[request id: [^\]]*\] )?(in ensemble '[^']*', )?")
_SHED = ("router: ", "in ensemble '", "Exceeds maximum queue size", "Request timeout expired")
_UNKNOWN = re.compile(r"unknown model: '([^']*)' is not found")
_NO_GRPC = ("Socket closed", "Failed parsing HTTP/2")  # the first also where a server ends just then
_NOT_CONNECTED = (OSError, aiohttp.ClientError, HTTPException)  # also what speaks another protocol
_TRACE = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_ADDRESS = re.compile(r"(?:(?P<host>[A-Za-z0-9._-]+)|\[(?P<six>[0-9A-Za-z:.%]+)\]):(?P<port>[0-9]{1,5})")

Input = TypeVar("Input")
Answer = TypeVar("Answer")


class InferResult(Protocol):
    """tritonclient's result, of gRPC or HTTP."""

    def as_numpy(self, name: str) -> NDArray[Any] | None:
        """The output tensor, None when the answer has none of that name."""


@dataclass(frozen=True, eq=False)
class Answered:
    """`item_ids` int64[K], `scores` float32[K], best first, and how they came about."""

    item_ids: NDArray[np.int64]
    scores: NDArray[np.float32]
    by: Literal["model", "popularity"]  # popularity: the history held no item of the catalogue
    dropped: int  # items of the history that the catalogue does not know
    cut: int  # oldest items beyond what the model reads


@dataclass(frozen=True, eq=False)
class Recommendation(Answered):
    """Items that come next; scores are log-probabilities."""

    prompt_tokens: int
    valid: int  # semantic IDs of the last beam that are items
    catalogue_version: int  # of the catalogue that every step of this request read


@dataclass(frozen=True, eq=False)
class Question(Generic[Answer]):
    """What an ensemble is asked, and how its answer is read; `read` raises ServerError."""

    ensemble: str
    tensors: dict[str, NDArray[Any]]
    read: Callable[[InferResult], Answer]
    user_id: int | None = None
    traceparent: str | None = None
    outputs: Sequence[str] = OUTPUTS
    groups: tuple[GroupNames | None, ...] = ()  # of which its tensors have the numbers

    def arguments(self, inputs: type[Any], outputs: type[Any]) -> dict[str, Any]:
        """Of tritonclient's `infer`, with the protocol's own InferInput and InferRequestedOutput. Raises InputError."""
        return {
            "model_name": self.ensemble,
            "inputs": infer_inputs(inputs, self.tensors),
            "outputs": [outputs(name) for name in self.outputs],
            "headers": headers_of(self.user_id, self.traceparent),
        }

    def failed(self, error: Exception, url: str, timeout_s: float) -> GenrecError:
        """Why there is no answer, of what a client library raised."""
        return by_name(translate(error, url, timeout_s), *self.groups)


def infer_inputs(kind: type[Input], tensors: dict[str, NDArray[Any]]) -> list[Input]:
    """`tensors` as tritonclient's InferInput of the protocol (`kind`)."""
    inputs: list[Any] = []
    for name, tensor in tensors.items():
        made: Any = kind(name, list(tensor.shape), np_to_triton_dtype(tensor.dtype))  # type: ignore[call-arg]
        made.set_data_from_numpy(tensor)
        inputs.append(made)
    return inputs


def headers_of(user_id: int | None, traceparent: str | None = None) -> dict[str, str]:
    """HTTP headers or gRPC metadata; a new dict each time, because tritonclient adds to it. Raises InputError."""
    headers = {} if user_id is None else {USER_HEADER: str(int(user_id))}
    if traceparent is None:
        return headers
    if not isinstance(traceparent, str) or not _TRACE.fullmatch(traceparent):
        limit = "W3C Trace Context: version-trace id-span id-flags, lower-case hex, as 00-<32>-<16>-01"
        raise InputError(TRACE_HEADER, f"is {traceparent!r}", limit)
    return {**headers, TRACE_HEADER: traceparent}


def parse(result: InferResult) -> Recommendation:
    """The answer. Raises ServerError when an output is missing or not of one row."""
    return answer_of(result, len(Report._fields), Recommendation)


def answer_of(result: InferResult, numbers: int, answer: Callable[..., Answer]) -> Answer:
    """`answer` of `item_ids`, `scores`, who answered, and the rest of the `numbers` of the report.

    Raises ServerError when they are not so.
    """
    found = {name: result.as_numpy(name) for name in OUTPUTS}
    rows = {name: tensor[0] for name, tensor in found.items() if tensor is not None and len(tensor) == 1}
    if (
        len(rows) < len(OUTPUTS)
        or rows["report"].size != numbers
        or rows["item_ids"].shape != rows["scores"].shape
    ):
        shapes = {name: None if tensor is None else tensor.shape for name, tensor in found.items()}
        raise ServerError(f"the answer has outputs of shapes {shapes}")
    # Copies: the arrays of tritonclient are views that keep the whole response alive.
    items, scores = rows["item_ids"].astype(np.int64), rows["scores"].astype(np.float32)
    answered_by, *rest = (int(x) for x in rows["report"])
    return answer(items, scores, "popularity" if answered_by == POPULARITY else "model", *rest)


def translate(error: Exception, url: str, timeout_s: float) -> GenrecError:
    """A client library's error as one of clients.errors."""
    if isinstance(error, TimeoutError | asyncio.TimeoutError):  # two classes before Python 3.11
        return TimedOut(f"{url}: no answer within {timeout_s:g} s")
    if isinstance(error, InferenceServerException):
        status = str(error.status() or "").removeprefix("StatusCode.")
        return _translate_status(status, str(error.message() or ""), url, timeout_s)
    # Subclasses of these are connections that the other side closed. Their messages have the bytes that came.
    if type(error) in (BadStatusLine, aiohttp.ClientResponseError):
        return Unreachable(
            f"{url}: does not answer in HTTP; is this the gRPC port? It takes the protocol grpc"
        )
    if isinstance(error, _NOT_CONNECTED):
        return Unreachable(f"{url}: {type(error).__name__}: {error}")
    return ServerError(f"{url}: {type(error).__name__}: {error}")


def _translate_status(status: str, message: str, url: str, timeout_s: float) -> GenrecError:
    text = _PREFIX.sub("", message, count=1)
    if status in ("INVALID_ARGUMENT", "400"):
        return BadRequest(text)
    if status in ("NOT_FOUND", "404"):
        if found := _UNKNOWN.search(text):
            text = f"does not serve `{found[1]}`: its artifact lacks a model for it, or --ensembles leaves it out"
        return Unreachable(f"{url}: {text}")
    if status == "DEADLINE_EXCEEDED":
        return TimedOut(f"{url}: no answer within {timeout_s:g} s")
    if status in ("UNAVAILABLE", "503", "CANCELLED", "502", "504"):
        # gRPC has one code for "this server sheds load" and for "there is no server"; the text tells them
        # apart.
        if any(mark in message for mark in _SHED):
            return Overloaded(text)
        hint = (
            "; is this the HTTP port? It takes the protocol http" if any(m in text for m in _NO_GRPC) else ""
        )
        return Unreachable(f"{url}: {text}{hint}")
    return ServerError(f"{url}: [{status}] {text}")


def check_url(url: str) -> tuple[str, int]:
    """(host, port) of an address. Raises InputError."""
    found = _ADDRESS.fullmatch(url) if isinstance(url, str) else None
    host, port = (found["host"] or found["six"], int(found["port"])) if found else ("", 0)
    # No resolver takes a name of which a part is longer, or empty
    is_name = all(0 < len(each) < 64 for each in host.removesuffix(".").split("."))
    if not 1 <= port <= MAX_PORT or not (_is_ipv6(host) if found and found["six"] else is_name):
        limit = f"host:port or [IPv6]:port, port 1 to {MAX_PORT}, without a scheme or a path"
        raise InputError("url", f"is {url!r}", limit)
    return host, port


def channel_to(host: str) -> list[tuple[str, int]]:
    """Arguments of a gRPC channel. No proxy of the environment (http_proxy) is asked for this machine, which it cannot
    reach; over HTTP none is asked at all.
    """
    return [*CHANNEL, ("grpc.enable_http_proxy", 0)] if _is_loopback(host) else CHANNEL


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _is_ipv6(host: str) -> bool:
    try:
        return IPv6Address(host) is not None
    except ValueError:
        return False


def check_protocol(protocol: str) -> None:
    """Raises InputError for a protocol this client does not speak."""
    if protocol not in get_args(Protocols):
        raise InputError("protocol", f"is {protocol!r}", ", ".join(get_args(Protocols)))


def check_timeout(timeout_s: float) -> float:
    """Seconds as a float. Raises InputError."""
    number = isinstance(timeout_s, int | float | np.integer | np.floating) and not isinstance(timeout_s, bool)
    if not number or not 0 < timeout_s <= MAX_TIMEOUT_S:
        raise InputError("timeout_s", f"is {timeout_s!r}", f"seconds, above 0, at most {MAX_TIMEOUT_S}")
    return float(timeout_s)
