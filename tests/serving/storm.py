"""Sending thousands of prepared requests and noting how each one ended."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

import grpc
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

PATIENCE_S = 60.0  # no request may take that long: a hang, not slowness
CLOSED = "closed"


class Ending(NamedTuple):
    """`code`: OK, a gRPC status, an HTTP status, or `closed` (the connection, without an answer)."""

    code: str
    text: str
    answer: pb.ModelInferResponse | None = None


async def _grpc(url: str, requests: deque[pb.ModelInferRequest], endings: list[Ending], lanes: int) -> None:
    async with grpc.aio.insecure_channel(url) as channel:
        call = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer

        async def lane() -> None:
            while requests:
                try:
                    # No timeout for gRPC to keep: on 2.51 that is a cancel, and may bring the server down (H2).
                    answer = await asyncio.wait_for(asyncio.shield(call(requests.popleft())), PATIENCE_S)
                    endings.append(Ending("OK", "", answer))
                except grpc.aio.AioRpcError as error:
                    endings.append(Ending(error.code().name, error.details() or ""))

        await asyncio.gather(*(lane() for _ in range(lanes)))


async def exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> Ending:
    """One HTTP request as it stands, and the answer to it."""
    try:
        writer.write(request)
        await writer.drain()
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        size = int(head.partition("content-length:")[2].split("\r\n")[0] or 0)
        body = await reader.readexactly(size)
    except (asyncio.IncompleteReadError, ConnectionError):
        return Ending(CLOSED, "")
    return Ending(head.split(" ", 2)[1], body.decode("utf-8", "replace"))


async def _http(url: str, requests: deque[bytes], endings: list[Ending], lanes: int) -> None:
    host, port = url.split(":")

    async def lane() -> None:
        writer = None
        while requests:
            if writer is None:
                reader, writer = await asyncio.open_connection(host, int(port))
            ending = await asyncio.wait_for(exchange(reader, writer, requests.popleft()), PATIENCE_S)
            endings.append(ending)
            if ending.code == CLOSED:
                writer.close()
                writer = None
        if writer:
            writer.close()

    await asyncio.gather(*(lane() for _ in range(lanes)))


def storm(
    grpc_url: str,
    http_url: str,
    over_grpc: Iterable[pb.ModelInferRequest],
    over_http: Iterable[bytes],
    lanes: int = 16,
) -> tuple[list[Ending], list[Ending]]:
    """Send both lots at once, `lanes` requests of each in flight; the endings, in the order they came."""
    first: list[Ending] = []
    second: list[Ending] = []

    async def both() -> None:
        await asyncio.gather(
            _grpc(grpc_url, deque(over_grpc), first, lanes), _http(http_url, deque(over_http), second, lanes)
        )

    asyncio.run(both())
    return first, second
