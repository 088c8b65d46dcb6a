"""Engines of an artifact, by the target's row in `genrec.target`."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from genrec.cores import usable_cores
from genrec.engine.instructions import engine_of
from genrec.engine.interface import Engine, Executor, Passes
from genrec.errors import ArtifactError, InputError
from genrec.files import read_json
from genrec.kv.layout import KV_TYPES, Layout
from genrec.models.config import ModelConfig
from genrec.settings import Settings
from genrec.target import runnable, target_of


def load_passes(target: str, folder: Path, kv_type: str, threads: int = 0, streams: int = 1) -> list[Passes]:
    """The passes of `target` built in `folder`, once per stream; `threads` (0: all cores) are shared by streams.

    Raises InputError (a target that no process of ours runs), ArtifactError (bad files).
    """
    module = target_of(target).engine
    if not module:
        raise InputError("target", f"is {target!r}", f"one of {', '.join(runnable())}")
    passes: list[Passes] = import_module(module).load_passes(folder, kv_type, threads, streams)
    return passes


def load_layout(settings: Settings, config: ModelConfig) -> Layout:
    """Where the target's engines put things in an arena slot."""
    path = engine_of(settings.artifact, settings.target) / "engine.json"
    try:
        kv_type = read_json(path)["kv_type"]
    except (KeyError, TypeError) as error:
        raise ArtifactError(path, f"says no kv_type: {error!r}") from error
    if not isinstance(kv_type, str) or kv_type not in KV_TYPES:
        raise ArtifactError(path, f"kv_type is {kv_type!r} (accepted: {', '.join(KV_TYPES)})")
    return Layout(config, settings.beam_width, kv_type)


def load_engine(settings: Settings, config: ModelConfig) -> Engine:
    """The passes over arena memory."""
    folder, layout = engine_of(settings.artifact, settings.target), load_layout(settings, config)
    (passes,) = load_passes(settings.target, folder, layout.kv_type, settings.threads)
    return Engine(layout, passes)


def load_executors(settings: Settings, config: ModelConfig) -> list[Executor]:
    """Executors of whole requests, as many as may run at once."""
    folder, width = engine_of(settings.artifact, settings.target), settings.beam_width
    target = target_of(settings.target)
    if target.executor:
        own: list[Executor] = import_module(target.engine).load_executors(folder, width)
        return own
    # Here, because it imports numba: 0.3 s of every start, and `prefill` does without it.
    from genrec.engine.host import HostExecutor
    from genrec.engine.one_core import OneCoreOrAll

    kv_type = load_layout(settings, config).kv_type

    def executors(threads: int, streams: int) -> list[Executor]:
        passes = load_passes(settings.target, folder, kv_type, threads, streams)
        return [HostExecutor(each, config, width, kv_type) for each in passes]

    found = executors(settings.threads, settings.streams)
    shares = target.streams and usable_cores() > 1  # its work between cores, if nobody says how
    if settings.threads or settings.streams > 1 or not shares:
        return found
    return [OneCoreOrAll(found[0], lambda: executors(1, 1)[0], width)]
