"""Rankers of an artifact and the pool they work with. All of it imports numba, which plain passes do without."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module

from genrec import manifest
from genrec.cores import usable_cores
from genrec.engine.hstu_users import HstuEntries
from genrec.engine.instructions import engine_of
from genrec.engine.interface import RankPasses
from genrec.engine.load import load_layout
from genrec.engine.pre_infer import PreInferences
from genrec.engine.rank_users import RankEntries
from genrec.engine.ranking import RankExecutor
from genrec.errors import InputError
from genrec.kv.entries import EntryLayout
from genrec.manifest import digest_file
from genrec.models.config import ModelConfig
from genrec.nodes.item_store import ItemStore
from genrec.nodes.node_share import NodeShare
from genrec.pool.pool import Pool
from genrec.pool.tier import open_tier
from genrec.rank.choice import policy
from genrec.rank.head import FILE_NAME as HEAD
from genrec.rank.head import RankerHead
from genrec.rank.kinds import NO_RANKER, hstu_of, ranker_of
from genrec.rank.options import WEIGHTS, RankerConfig
from genrec.settings import Settings
from genrec.target import ranking_targets, target_of

GENERATOR = "model.safetensors"  # in `model/`
AUTO = {"split": "split", "user": "user", "item": "item", "both": "hazard", "all": "split"}  # by its training
BOTH = ("user", "item")
NEEDS = {
    "user": ("user",), "item": ("item",), "split": ("split",),
    "agnostic": BOTH, "greedy": BOTH, "past": BOTH, "hazard": BOTH,
}  # fmt: skip
NO_USERS = ("recompute", "item")  # these read no user's entry


def load_entry_layout(settings: Settings, config: ModelConfig) -> EntryLayout:
    """Where the target's engines put things in entries of the pool."""
    options = RankerConfig.of(settings.artifact, settings.target)
    kv_type = load_layout(settings, config).kv_type
    return EntryLayout(config, options.item_tokens, kv_type, options.history_step(config))


def load_prompt_layout(settings: Settings, config: ModelConfig) -> EntryLayout:
    """Where KV of the generator's prompts lies that no ranker reads."""
    return EntryLayout(config, config.levels, load_layout(settings, config).kv_type, config.levels)


def create_pool(settings: Settings, config: ModelConfig) -> None:
    """An empty pool for the rankings of the artifact, of the sizes in `settings`. Raises InputError."""
    assert settings.pool is not None
    Pool.create(settings.pool, *pool_sizes(settings, config))
    if settings.nodes > 1:
        NodeShare(settings.node, settings.nodes).save(settings.pool)


def pool_sizes(settings: Settings, config: ModelConfig) -> tuple[int, int, int, int]:
    """Bytes of users, rows of items, bytes of a row, and bytes from one key of a user to the next.

    Of candidates of an HSTU ranker nothing is kept; without a ranker prompts alone.
    """
    users, items = settings.pool_user_mb << 20, settings.pool_item_mb << 20
    if ranker_of(settings.artifact, settings.ranker) == NO_RANKER:
        prompts = load_prompt_layout(settings, config)
        return users, 0, 0, prompts.step * prompts.token_bytes
    if hstu := hstu_of(settings.artifact, settings.ranker):
        events = HstuEntries(hstu, "")
        return users, 0, 0, events.step * events.token_bytes
    layout = load_entry_layout(settings, config)
    row = layout.item_bytes
    return users, items // row, row, layout.step * layout.token_bytes


def load_rank_executors(
    settings: Settings, config: ModelConfig, store: ItemStore | None = None
) -> list[RankExecutor]:
    """Executors of whole rankings, as many as may run at once. Raises InputError, ArtifactError."""
    target = target_of(settings.target)
    if not target.ranker:
        raise InputError("target", f"{target.name} has no ranker", ", ".join(ranking_targets()))
    folder, layout = engine_of(settings.artifact, settings.target), load_entry_layout(settings, config)
    load = import_module(target.ranker).load_rankers
    streams = load(folder, config, layout.kv_type, settings)
    head = RankerHead.load(settings.artifact / "onnx" / HEAD, config)
    options, model = RankerConfig.of(settings.artifact, settings.target), kv_model(settings)
    pool, ahead, name = Pool(settings.pool) if settings.pool else None, None, chosen_prefix(settings, options)
    if settings.pool_disk and name in NO_USERS:
        problem = f"is {settings.pool_disk!r}, and rankings by {name} read no user's KV"
        raise InputError("pool_disk", problem, "empty; with another prefix_choice a folder")
    if pool:
        pool.rule = policy(name, pool.hotness)
        if settings.pool_user_mb and name not in NO_USERS:
            entries = RankEntries.of(layout, model)
            tier = open_tier(pool, settings.pool_disk, settings.pool_disk_mb)
            ahead = PreInferences(pool, lambda: entries, settings.lease_ms / 1e3, tier)

    def executor(passes: RankPasses, one_core: RankExecutor | None = None) -> RankExecutor:
        return RankExecutor(passes, head, layout, model, pool, options.orders[0], ahead, store, one_core)

    cores = settings.threads or usable_cores()
    if ahead and target.streams and settings.streams == 1 and cores > 1:
        (alone,) = load(folder, config, layout.kv_type, replace(settings, threads=1))
        return [executor(passes, executor(alone)) for passes in streams]
    return [executor(passes) for passes in streams]


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


def kv_model(settings: Settings) -> str:
    """Which weights make users' and items' KV: entries of others are not found."""
    shared = RankerConfig.of(settings.artifact, settings.target).shared
    return weights_name(settings, GENERATOR if shared else WEIGHTS)


def weights_name(settings: Settings, file: str) -> str:
    """Of a file of weights, by what was in it when the target's engines were made: another may lie there meanwhile."""
    artifact, name = settings.artifact, f"model/{file}"
    if sha := manifest.made_of(artifact, name, target_of(settings.target).made_of):
        return sha
    # Every start verifies what is recorded, so that no process need read the weights for their name.
    return manifest.recorded(artifact, name) or digest_file(artifact / name)
