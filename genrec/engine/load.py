"""Engines of an artifact, by the target's row in `genrec.target`."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from genrec.artifact import engines_folder
from genrec.engine.interface import Engine, Executor, Passes
from genrec.errors import ArtifactError, InputError
from genrec.files import read_json
from genrec.kv.entries import EntryLayout
from genrec.kv.layout import KV_TYPES, Layout
from genrec.manifest import digest_file
from genrec.models.config import ModelConfig
from genrec.pool.choice import policy
from genrec.pool.pool import Pool
from genrec.rank.head import FILE_NAME as HEAD
from genrec.rank.head import RankerHead
from genrec.rank.options import OPTIONS, WEIGHTS, RankerConfig
from genrec.settings import Settings
from genrec.target import ranking_targets, runnable, target_of

AUTO = {"split": "split", "user": "user", "item": "item", "both": "hazard", "all": "split"}  # by its training
BOTH = ("user", "item")
NEEDS = {
    "user": ("user",), "item": ("item",), "split": ("split",),
    "agnostic": BOTH, "greedy": BOTH, "past": BOTH, "hazard": BOTH,
}  # fmt: skip

if TYPE_CHECKING:
    from genrec.engine.ranking import RankExecutor


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
    path = engines_folder(settings.artifact, settings.target) / "engine.json"
    try:
        kv_type = read_json(path)["kv_type"]
    except (KeyError, TypeError) as error:
        raise ArtifactError(path, f"not readable: {error}") from error
    if kv_type not in KV_TYPES:
        raise ArtifactError(path, f"kv_type is {kv_type!r} (accepted: {', '.join(KV_TYPES)})")
    return Layout(config, settings.beam_width, kv_type)


def load_engine(settings: Settings, config: ModelConfig) -> Engine:
    """The passes over arena memory."""
    folder, layout = engines_folder(settings.artifact, settings.target), load_layout(settings, config)
    (passes,) = load_passes(settings.target, folder, layout.kv_type, settings.threads)
    return Engine(layout, passes)


def load_executors(settings: Settings, config: ModelConfig) -> list[Executor]:
    """Executors of whole requests, as many as may run at once."""
    folder, width = engines_folder(settings.artifact, settings.target), settings.beam_width
    target = target_of(settings.target)
    if target.executor:
        own: list[Executor] = import_module(target.engine).load_executors(folder, width)
        return own
    # Here, because it imports numba: 0.3 s of every start, and `prefill` does without it.
    from genrec.engine.host import HostExecutor

    kv_type = load_layout(settings, config).kv_type
    streams = load_passes(settings.target, folder, kv_type, settings.threads, settings.streams)
    return [HostExecutor(passes, config, width, kv_type) for passes in streams]


def load_entry_layout(settings: Settings, config: ModelConfig) -> EntryLayout:
    """Where the target's engines put things in entries of the pool."""
    options = RankerConfig.load(settings.artifact / "model" / OPTIONS)
    return EntryLayout(config, options.item_tokens, load_layout(settings, config).kv_type)


def create_pool(settings: Settings, config: ModelConfig) -> None:
    """An empty pool for the rankings of the artifact, of the sizes in `settings`. Raises InputError."""
    assert settings.pool is not None
    row = load_entry_layout(settings, config).item_bytes
    Pool.create(settings.pool, settings.pool_user_mb << 20, (settings.pool_item_mb << 20) // row, row)


def load_rank_executors(settings: Settings, config: ModelConfig) -> list[RankExecutor]:
    """Executors of whole rankings, as many as may run at once. Raises InputError, ArtifactError."""
    from genrec.engine.ranking import RankExecutor  # it imports numba

    target = target_of(settings.target)
    if not target.ranker:
        raise InputError("target", f"{target.name} has no ranker", ", ".join(ranking_targets()))
    folder, layout = engines_folder(settings.artifact, settings.target), load_entry_layout(settings, config)
    load = import_module(target.ranker).load_rankers
    streams = load(folder, config, layout.kv_type, settings.threads, settings.streams)
    head = RankerHead.load(settings.artifact / "onnx" / HEAD, config)
    options, model = RankerConfig.load(settings.artifact / "model" / OPTIONS), kv_model(settings.artifact)
    pool = Pool(settings.pool) if settings.pool else None
    if pool:
        pool.rule = policy(chosen_prefix(settings, options), pool.hotness)
    return [RankExecutor(passes, head, layout, model, pool, options.orders[0]) for passes in streams]


def chosen_prefix(settings: Settings, options: RankerConfig) -> str:
    """The policy's name. Raises InputError for one whose orders the ranker was not trained for."""
    if settings.prefix_choice == "auto":
        return AUTO[options.order]
    needed = NEEDS.get(settings.prefix_choice, ())
    if missing := [order for order in needed if order not in options.orders]:
        problem = (
            f"is {settings.prefix_choice}, which reads orders that the ranker was not trained for: {missing}"
        )
        raise InputError("prefix_choice", problem, f"auto, recompute, {', '.join(options.orders)}")
    return settings.prefix_choice


def kv_model(artifact: Path) -> str:
    """Which weights make users' and items' KV: entries of others are not found."""
    shared = RankerConfig.load(artifact / "model" / OPTIONS).shared
    return digest_file(artifact / "model" / ("model.safetensors" if shared else WEIGHTS))
