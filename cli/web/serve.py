"""`genrec web`: the page, on a server that it starts or on one that runs already."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from aiohttp import web

from cli.collector import Collector
from cli.options import check_unset, tell_outdated
from cli.running import read_server
from cli.web.app import HOSTS, Page, application
from cli.web.shelf import Shelf
from deploy.launcher import running_server
from deploy.ports import is_free
from deploy.probe import server_id
from deploy.signals import until_interrupted
from genrec.catalogue.versions import catalogue_id
from genrec.draft.options import has_draft
from genrec.errors import InputError

NAME_S = 2.0  # that a server may take to say its name
ANY_PORT = "http://127.0.0.1:0/v1/traces"


def run(a: argparse.Namespace) -> None:
    """Serve the page until SIGINT or SIGTERM."""
    if a.server:
        check_unset(a, ["beam_width"], "--server")
    else:
        tell_outdated(a.artifact)
    if not 1 <= a.port <= 65535:
        raise InputError("port", f"is {a.port}", "1 to 65535")
    if not is_free(a.port):
        raise InputError("port", f"{a.port} is in use on {HOSTS[0]}", "a free port, by --port")
    with until_interrupted(), page_of(a.artifact, a.server, a.beam_width) as page:
        told = f"try it: http://{HOSTS[0]}:{a.port}  (Ctrl-C ends it)"
        # aiohttp calls `print` once it listens. Signals stay ours: it would leave both at their defaults when it ends.
        web.run_app(
            application(page),
            host=HOSTS[0],
            port=a.port,
            print=lambda *_: print(told, flush=True),
            handle_signals=False,
        )


@contextmanager
def page_of(artifact: Path, server: str | None, beam_width: int) -> Iterator[Page]:
    """What the page is about; a server started here ends with it. Raises what a start of a server raises."""
    shelf = Shelf(artifact)
    decoders = ("beam", "draft") if has_draft(artifact) else ("beam",)
    collector: Collector | None
    with ExitStack() as stack:
        if server is None:
            own = collector = stack.enter_context(Collector(ANY_PORT))
            options = {"beam_width": beam_width, "trace_url": own.url}
            running = stack.enter_context(running_server(artifact, **options))
            http_url, metrics_url = running.http_url, running.metrics_url
        else:
            found = read_server(server)
            http_url, metrics_url = found.http_url, found.metrics_url
            collector = stack.enter_context(Collector(found.trace_url)) if found.trace_url else None
            name = server_id(http_url, NAME_S)  # "" of one that is away: it may come back
            if name and not name.endswith(f"-{catalogue_id(artifact)}"):
                raise InputError(
                    "server",
                    f"does not say that it serves the catalogue of {artifact}",
                    "a server of that artifact",
                )
        yield Page(artifact.name, http_url, metrics_url, decoders, shelf, collector)
