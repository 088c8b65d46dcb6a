"""The page, served by a thread of the test's process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from aiohttp import web

from cli.web.app import application
from cli.web.serve import page_of
from deploy.ports import choose_ports

NOBODY = "127.0.0.1:1"


@contextmanager
def page_at(artifact: Path, server: str) -> Iterator[str]:
    """The page's address; it is served by a thread of this process."""
    loop, port = asyncio.new_event_loop(), choose_ports().http
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    with page_of(artifact, server, 32) as page:

        async def start() -> web.AppRunner:
            runner = web.AppRunner(application(page))
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", port).start()
            return runner

        runner = asyncio.run_coroutine_threadsafe(start(), loop).result(60)
        yield f"http://127.0.0.1:{port}"
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(60)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()
