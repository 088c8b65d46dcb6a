"""`genrec train --events`: a model trained further on events that came since."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cli.chain import How, check_generator, check_ours
from genrec.errors import InputError
from genrec.manifest import COMMANDS, check_inputs, read
from genrec.words import command

OF_EPOCHS = ("epochs", "patience", "validate_every")
OF_THE_START = ("warm_start", "dropout", "max_history", "hidden_size", "num_hidden_layers", "head_dim")
OF_THE_RANKER = ("dropout", "reach", "layers")
OF_THE_MODEL = ("dropout", "max_history", "hidden_size", "layers", "heads", "temperature")  # of hstu-next
OVER_GENERATOR = ("ranker", "draft")  # stages that are of one generator's weights


def further_generator(artifact: Path, events: Sequence[Path], how: How, changes: Mapping[str, Any]) -> None:
    """`model/model.safetensors`; says what is of the weights before. Raises InputError, ArtifactError."""
    from training.generator.further import further_artifact
    from training.generator.recipes import OF_DATA
    from training.recipe_file import changed
    from training.stages import recipe

    _check_read(changes, (*OF_EPOCHS, *OF_THE_START))
    check_ours(artifact)
    check_generator(artifact)
    chosen = changed(recipe(artifact), changes, OF_DATA)
    if _told("generator", further_artifact, artifact, events, chosen, how):
        files = shlex.join(map(str, events))
        stages = (stage for stage in OVER_GENERATOR if stage in read(artifact))
        _tell_anew(artifact, "generator", (f"{COMMANDS[stage]} --events {files}" for stage in stages))


def further_draft(artifact: Path, events: Sequence[Path], how: How, changes: Mapping[str, Any]) -> None:
    """`model/draft.safetensors`, over the generator as it is. Raises InputError, ArtifactError."""
    from training.generator.draft import DraftSettings
    from training.generator.draft_further import further_artifact
    from training.recipe_file import changed

    if changes.get("joint"):
        raise InputError(
            "joint", "is asked for with --events", "--draft alone, once the generator has learnt them"
        )
    _check_read(changes, OF_EPOCHS)
    check_generator(artifact)
    chosen = changed(DraftSettings(), changes)
    if _told("draft", further_artifact, artifact, events, chosen, how):
        _tell_anew(artifact, "draft")


def further_ranker(artifact: Path, events: Sequence[Path], how: How, changes: Mapping[str, Any]) -> None:
    """`model/ranker.safetensors`, over the generator as it is. Raises InputError, ArtifactError."""
    from training.ranker.further import further_artifact
    from training.ranker.run import RankerSettings
    from training.recipe_file import changed

    _check_read(changes, (*OF_EPOCHS, *OF_THE_RANKER))
    check_generator(artifact)
    chosen = changed(RankerSettings(), changes)
    if _told("ranker", further_artifact, artifact, events, chosen, how):
        _tell_anew(artifact, "ranker")


def further_hstu(artifact: Path, events: Sequence[Path], how: How, changes: Mapping[str, Any]) -> None:
    """`model/hstu.safetensors`. Raises InputError, ArtifactError."""
    from training.hstu.further import further_artifact
    from training.hstu.settings import HstuSettings
    from training.recipe_file import changed

    _check_read(changes, OF_EPOCHS)
    _check_catalogue(artifact, "hstu")
    chosen = changed(HstuSettings(), changes)
    _told("hstu", further_artifact, artifact, events, chosen, how)


def further_hstu_next(artifact: Path, events: Sequence[Path], how: How, changes: Mapping[str, Any]) -> None:
    """`model/hstu_next.safetensors`; says what is of the weights before. Raises InputError, ArtifactError."""
    from training.hstu_next.further import further_artifact
    from training.hstu_next.settings import HstuNextSettings
    from training.recipe_file import changed

    _check_read(changes, (*OF_EPOCHS, *OF_THE_MODEL))
    _check_catalogue(artifact, "hstu-next")
    chosen = changed(HstuNextSettings(), changes)
    if _told("hstu-next", further_artifact, artifact, events, chosen, how):
        _tell_anew(artifact, "hstu-next")


def _check_catalogue(artifact: Path, stage: str) -> None:
    """Raises ArtifactError for a model of another catalogue, also where it has learnt the events that are given."""
    from genrec.catalogue.meaning import check_meaning

    check_inputs(artifact, "tokenise")
    check_meaning(artifact, stage)


def _check_read(changes: Mapping[str, Any], unread: Iterable[str]) -> None:
    """Raises InputError for settings of a recipe file that a further training does not read."""
    if found := changes.keys() & unread:
        problem = f"sets {', '.join(sorted(found))} with --events"
        raise InputError("recipe", problem, "settings of a further training: events are learnt once")


def _told(
    name: str, work: Callable[..., Any], artifact: Path, events: Sequence[Path], chosen: Any, how: How
) -> bool:
    """Learn events, and tell. Whether there was something to learn, and this process is the one that tells.

    Raises ArtifactError for what has learnt them over a generator that has learnt since.
    """
    from genrec.nn.checkpoint import check_trained_on_this
    from training.launch import torchrun_rank

    begun, facts = time.monotonic(), how.on_ranks(work, artifact, events, chosen, how.seed)
    if torchrun_rank():  # rank 0 tells
        return False
    if facts is None:
        print(f"{name}: has learnt {events[-1]}")
        if name in OVER_GENERATOR:
            check_trained_on_this(artifact / "model" / f"{name}.safetensors", name)
        return False
    said = ", ".join(f"{fact} {value}" for fact, value in facts.items())
    print(f"{name}: trained further in {time.monotonic() - begun:.1f} s: {said}")
    return True


def _tell_anew(artifact: Path, name: str, commands: Iterable[str] = ()) -> None:
    """Which commands make anew what is of the weights before, as they are typed: these, and then what is served."""
    words = (each.partition(" ") for each in (*commands, "export", "build"))
    said = ", then ".join(command(verb, artifact, options) for verb, _, options in words)
    print(f"{name}: what was made of its weights before is made anew by {said}")
