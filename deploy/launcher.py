"""Start tritonserver on an artifact, prove it ready with a real request, watch it, and leave nothing behind.

    with running_server(Path("artifacts/beauty")) as server:
        client = tritonclient.grpc.InferenceServerClient(server.grpc_url)

`serve` is the same for a person: it runs until SIGINT or SIGTERM. Everything listens on loopback. What has to
be known to use the server is also in `<run folder>/server.json` (mode 0600: it holds the token).
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from deploy import command, probe, server_files, shared_memory
from deploy.address import check_address
from deploy.instructions import describe, instruction_set
from deploy.launch import Launch, LaunchError, Stopped
from deploy.pools import POOL, disk_of_each, with_pool
from deploy.ports import LOOPBACK, Ports, choose_ports
from deploy.private import PrivateFolder
from deploy.run_folder import hold, run_folder
from deploy.server_files import ServerFiles
from deploy.signals import until_interrupted
from deploy.supervisor import Supervisor
from deploy.unread import check_read
from ensembles.description import Ensemble
from ensembles.render import render
from ensembles.served import served, with_instances
from genrec import leftovers, manifest
from genrec.artifact import load_config
from genrec.catalogue.versions import served_id
from genrec.draft.options import has_draft
from genrec.engine.exported import verify_served
from genrec.errors import InputError
from genrec.files import write_whole
from genrec.progress import ticking
from genrec.rank.kinds import ranker_of, ranks_on
from genrec.settings import Settings, chosen_fields

REPOSITORY = Path(__file__).resolve().parent.parent / "model_repository"
START_ATTEMPTS = 3
SERVER_JSON = "server.json"
log = logging.getLogger("genrec.serve")


@dataclass(frozen=True)
class Options:
    """What a person may choose beside `Settings`. Ports left out are chosen free, a run folder is a temporary one."""

    http_port: int | None = None
    grpc_port: int | None = None
    metrics_port: int | None = None
    ensembles: tuple[str, ...] = ()  # by name; none: all that the artifact and the target have
    instances: Mapping[str, int] = field(default_factory=dict)  # processes of a model, by its name
    arena_slots: int = 64  # requests in flight that hold KV; more are shed
    run_dir: Path | None = None
    address: str = LOOPBACK
    i_know: bool = False  # of the holes of an old Triton
    start_timeout_s: float = 120.0
    probe_every_s: float = 5.0
    supervised: Callable[[Supervisor], None] = lambda _: None  # is told of it before it starts


@dataclass(frozen=True)
class RunningServer:
    """Where a server listens and what it takes to ask for more than inference."""

    ports: Ports
    token: str
    run_dir: Path
    supervisor: Supervisor
    ensembles: tuple[str, ...]
    trace_url: str  # where it sends spans; "": nowhere

    @property
    def http_url(self) -> str:
        """host:port of KServe v2 over HTTP."""
        return self.ports.http_url

    @property
    def grpc_url(self) -> str:
        """host:port of KServe v2 over gRPC."""
        return self.ports.grpc_url

    @property
    def metrics_url(self) -> str:
        """host:port of the Prometheus metrics (path /metrics)."""
        return self.ports.metrics_url

    @property
    def http_headers(self) -> dict[str, str]:
        """Headers that open statistics and configurations over HTTP; what controls the server stays closed."""
        return {command.TOKEN_HEADER: self.token}

    @property
    def grpc_headers(self) -> dict[str, str]:
        """The same over gRPC."""
        return {command.GRPC_TOKEN_HEADER: self.token}

    @property
    def pid(self) -> int:
        """Pid of the present tritonserver; another one after a restart."""
        return self.supervisor.pid

    @property
    def restarts(self) -> int:
        """How often the supervisor has started the server, or loaded models of it, again."""
        return self.supervisor.restarts


@contextmanager
def running_server(artifact: Path, **given: Any) -> Iterator[RunningServer]:
    """A server that answers; ended on leaving. `given` are fields of `Options`, and of `Settings` that people choose.

    Raises InputError (a port in use, a bad beam width), ArtifactError, LaunchError with the end of the
    server's log, and on leaving TimeoutError when processes do not end.
    """
    settings = {each.name: given.pop(each.name) for each in chosen_fields() if each.name in given}
    chosen, artifact = Options(**given), artifact.resolve()
    leftovers.remove_of_the_dead()
    run_dir, keep = run_folder(chosen.run_dir), chosen.run_dir is not None
    mine = hold(run_dir)
    try:
        server = _start(artifact, chosen, settings, run_dir)
        try:  # from here on: a signal may come at once
            runs_in = instruction_set(Settings(artifact, artifact, **settings))
            at = server.http_url, server.grpc_url
            log.info("serving %s (%s): http %s, grpc %s", artifact.name, runs_in, *at)
            yield server
        finally:
            try:
                with ticking("ending the server"):
                    server.supervisor.stop()
            finally:
                (run_dir / SERVER_JSON).unlink(missing_ok=True)
                keep = keep or server.supervisor.error is not None
    except LaunchError as error:
        keep = keep or not isinstance(error, Stopped)  # the log is in it
        raise
    finally:
        os.close(mine)
        if not keep:
            shutil.rmtree(run_dir, ignore_errors=True)


def _start(artifact: Path, options: Options, given: dict[str, Any], run_dir: Path) -> RunningServer:
    """Start until ready. A port we chose ourselves may be taken before the server binds it: then others."""
    digests = manifest.Digests()
    with ticking("checking the artifact"):  # gigabytes of weights are digested
        manifest.verify(artifact, digests)
    check_address(options.address, options.i_know)
    files = server_files.find_server()
    server_files.check_libraries(files)
    server_files.check_numpy(files)
    for attempt in range(1, START_ATTEMPTS + 1):
        ports = choose_ports(options.http_port, options.grpc_port, options.metrics_port)
        token = secrets.token_urlsafe(24)
        launch = _launch(files, artifact, options, given, run_dir, ports, token, digests)
        supervisor, traces = Supervisor(launch), given.get("trace_url", "")
        server = RunningServer(ports, token, run_dir, supervisor, launch.ensembles, traces)
        options.supervised(supervisor)
        try:
            with ticking("starting the server"):
                server.supervisor.start_and_wait(on_start=partial(_write_server_json, server))
        except LaunchError as error:
            if not error.passing or attempt == START_ATTEMPTS:
                raise
            continue
        except BaseException:  # Ctrl-C when it has just begun to answer
            (run_dir / SERVER_JSON).unlink(missing_ok=True)
            raise
        return server
    raise AssertionError("the last attempt returns or raises")


def _launch(
    files: ServerFiles,
    artifact: Path,
    options: Options,
    given: dict[str, Any],
    run_dir: Path,
    ports: Ports,
    token: str,
    digests: manifest.Digests,
) -> Launch:
    """One server on these ports."""
    prefix, control = leftovers.own_prefix(), secrets.token_urlsafe(24)
    private = PrivateFolder.of(prefix)
    settings, ensembles = _served_by(artifact, options, given, prefix)
    of_files, names = replace(settings, artifact=artifact), tuple(each.name for each in ensembles)
    slots = options.arena_slots if "recommend_staged" in names else 0
    models = {model.name: model.instances for ensemble in ensembles for model in ensemble.models}
    verified, started_with = partial(verify_served, of_files, models, digests), [""]

    def unchanged() -> bool:
        return manifest.digest_file(artifact / manifest.NAME) == started_with[0]

    def prepare() -> None:
        started_with[0] = manifest.digest_file(artifact / manifest.NAME)
        verified()  # a restart too: it would serve what is in the files now
        private.lay_out(files, artifact)
        _repository(ensembles, private.models)
        describe(private.models, names, instruction_set(of_files))
        shared_memory.prepare(settings, slots, sum(models.values()))

    return Launch(
        argv=lambda: command.command(
            files,
            private.models,
            private.backends,
            ports,
            token,
            prefix,
            control,
            options.address,
            settings.trace_url,
            served_id(artifact, digests),
        ),
        environment=command.environment(files, settings.environment(), settings.threads, private),
        prefix=prefix,
        secrets=(token, control),
        control_headers={command.CONTROL_HEADER: control},
        verify=verified,
        unchanged=unchanged,
        prepare=prepare,
        ports=ports,
        item=lambda: probe.known_item(artifact, settings.swap),
        ensembles=names,
        models={each.name: frozenset(model.name for model in each.models) for each in ensembles},
        log_file=run_dir / "server.log",
        start_timeout_s=options.start_timeout_s,
        probe_every_s=options.probe_every_s,
    )


def _served_by(
    artifact: Path, options: Options, given: dict[str, Any], prefix: str
) -> tuple[Settings, tuple[Ensemble, ...]]:
    """What the steps of the server with that prefix are told, and the ensembles it serves. Raises InputError."""
    arena, swap, pool = (leftovers.SHM / f"{prefix}{name}" for name in ("arena", leftovers.SWAP, POOL))
    settings = Settings(PrivateFolder.of(prefix).name(artifact, "artifact"), arena, **given, swap=swap)
    wanted = _ensembles(artifact, settings.target, options.ensembles, settings.ranker)
    ensembles = with_instances(wanted, options.instances)
    names = [ensemble.name for ensemble in ensembles]
    check_read(settings, artifact, names)
    return with_pool(disk_of_each(settings, options.instances), artifact, names, pool), ensembles


def _ensembles(
    artifact: Path, target: str, wanted: tuple[str, ...] = (), ranker: str = "auto"
) -> tuple[Ensemble, ...]:
    """Those wanted, of all that can be served. Raises InputError for a name that is none of them."""
    ranks = ranks_on(target, ranker_of(artifact, ranker))
    found = served(load_config(artifact, target).levels, has_draft(artifact), ranks, target)
    names = [ensemble.name for ensemble in found]
    if unknown := [name for name in wanted if name not in names]:
        raise InputError("ensembles", f"names {', '.join(unknown)}", f"of this artifact: {', '.join(names)}")
    return tuple(ensemble for ensemble in found if not wanted or ensemble.name in wanted)


def _repository(ensembles: tuple[Ensemble, ...], folder: Path) -> None:
    """The model repository, rendered. It is written to and must go again, though the installation is read-only."""
    for name in {model.name for ensemble in ensembles for model in ensemble.models}:
        version = folder / name / "1"
        version.mkdir(parents=True)
        shutil.copy(REPOSITORY / name / "1" / "model.py", version)
    render(ensembles, folder)


def _write_server_json(server: RunningServer) -> None:
    """Tell clients of this machine and user how to reach the server."""
    about = {
        "pid": server.pid,
        "http_url": server.http_url,
        "grpc_url": server.grpc_url,
        "metrics_url": server.metrics_url,
        "trace_url": server.trace_url,
        "token": server.token,
        "http_headers": server.http_headers,
        "grpc_headers": server.grpc_headers,
    }
    write_whole(server.run_dir / SERVER_JSON, json.dumps(about, indent=2), 0o600)


def serve(artifact: Path, **options: Any) -> None:
    """Serve until SIGINT or SIGTERM. Raises as `running_server`, and LaunchError when restarts fail."""
    with until_interrupted(), running_server(artifact, **options) as server:
        print(f"http {server.http_url}  grpc {server.grpc_url}  metrics http://{server.metrics_url}/metrics")
        print(f"log and server.json in {server.run_dir}; Ctrl-C ends it", flush=True)
        server.supervisor.wait()
