"""Settings that were chosen and that nothing which is served would read: who gave one learns it before the start."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from genrec.errors import InputError
from genrec.rank.kinds import DISCRIMINANT, ranker_of
from genrec.settings import Settings
from genrec.words import command

READS_DISK = "pre_infer"  # the ensemble; a ranking waits for no disk
RANKINGS = {"rank", "recommend_and_rank"}


def check_read(settings: Settings, artifact: Path, ensembles: Sequence[str]) -> None:
    """`ensembles` are those served of the artifact. Raises InputError."""
    ranker = ranker_of(artifact, settings.ranker)
    _check_verify(settings.verify, artifact, ensembles)
    _check_choice(settings.prefix_choice, artifact, ranker, ensembles)
    if settings.nodes > 1:
        _check_nodes(settings, ranker, ensembles)
    if settings.pool_disk:
        _check_disk(settings, artifact, ensembles)


def _check_verify(verify: str, artifact: Path, ensembles: Sequence[str]) -> None:
    if verify != "every" and "recommend_draft" not in ensembles:
        problem = f"is {verify}, and recommend_draft is not served"
        made = f"{command('train', artifact, '--draft alone')} and {command('export', artifact)}"
        raise InputError("verify", problem, f"every; {made} add drafts")


def _check_choice(choice: str, artifact: Path, ranker: str, ensembles: Sequence[str]) -> None:
    if choice == "auto":
        return
    if not RANKINGS.intersection(ensembles):
        problem = "nothing is served that ranks"
        limit = f"auto; {command('train', artifact, '--ranker')} makes a ranker"
    elif ranker != DISCRIMINANT:
        problem, limit = f"{ranker} ranks, which always begins with the user's KV", "auto"
    else:
        return
    raise InputError("prefix_choice", f"is {choice}, and {problem}", limit)


def _check_nodes(settings: Settings, ranker: str, ensembles: Sequence[str]) -> None:
    """Nodes share items' KV and nothing else, over Mooncake: without its library each would be alone for good."""
    limit = "1: nodes share items' KV alone"
    if not RANKINGS.intersection(ensembles):
        problem = "nothing is served that ranks"
    elif ranker != DISCRIMINANT:
        problem = f"{ranker} ranks, which keeps no items"
    elif not settings.pool_item_mb:
        problem = "pool_item_mb is 0: no items are kept"
    elif find_spec("mooncake") is None:
        problem, limit = "mooncake is not installed", "1, or pip install '.[mooncake]' first"
    else:
        return
    raise InputError("nodes", f"is {settings.nodes}, and {problem}", limit)


def _check_disk(settings: Settings, artifact: Path, ensembles: Sequence[str]) -> None:
    if READS_DISK not in ensembles:
        problem = f"is {settings.pool_disk!r}, and {READS_DISK} is not served, which alone reads it"
        made = command("train", artifact, "--ranker")
        raise InputError("pool_disk", problem, f"empty; with a ranker ({made}) a folder")
    if not settings.pool_user_mb:
        problem = f"is {settings.pool_disk!r}, and pool_user_mb is 0: no KV gets there"
        raise InputError("pool_disk", problem, "empty, or a pool_user_mb of at least 1")
