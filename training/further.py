"""What is alike where a model is trained further: on the last of some files, once, from the weights that are there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from genrec import manifest
from genrec.errors import ArtifactError, InputError
from genrec.files import check_writable, scratch_in
from genrec.progress import counting
from training.data.events import Came, Events, Merged, events_per_user, merged, of_users, stored_events
from training.sharded.world import World

LEARNT = "learnt"  # among the facts of a stage: sha256 of the files of events that its model has learnt since


class Further(NamedTuple):
    """A model that can be trained further: the stage of the manifest that made it, its name, its file in `model/`."""

    stage: str
    what: str
    weights: str


class OnePass(Protocol):
    """A training that goes over its events once."""

    name: str
    world: World
    steps: int

    def batches(self, epoch: int) -> Sequence[Any]:
        """As `training.loop.Task` says."""

    def step(self, batch: Any, done: float) -> float:
        """As `training.loop.Task` says."""


def once(run: OnePass, users: np.ndarray) -> dict[str, object]:
    """Every batch, once; `users` int64[n] are those of the events. Returns what happened.

    The loss is the mean over batches, each from before it was learnt. All ranks call it. Raises RankLost.
    """
    todo, losses = run.batches(0), []
    run.world.meet()  # who read from a slower disk is no lost rank
    with counting(f"train {run.name} further", len(todo), "batch", disable=run.world.rank > 0) as bar:
        for batch in todo:
            losses.append(run.step(batch, len(losses) / len(todo)))
            bar.update()
    facts = {"events": len(users), "users": len(np.unique(users)), "updates": run.steps}
    return {**facts, "loss": round(float(np.mean(losses)), 4), "ranks": run.world.ranks}


def learn_last(
    world: World, artifact: Path, model: Further, events: Sequence[Path],
    learn: Callable[[], tuple[Callable[[Path], object], dict[str, Any]]],
) -> dict[str, Any] | None:  # fmt: skip
    """`learn`s the last file of `events`, and returns what happened; None where the model has learnt that file.

    `learn` gives what writes the model into a folder, and what happened. Model and manifest are replaced at once, so
    that a server may start at any time. All ranks call it. Raises InputError, RankLost, and ArtifactError: before it
    learns where the model could not be put in place, or another process makes it, and where a file is another at the
    end.
    """
    lead = world.rank == 0
    with manifest.making(artifact, model.stage) if lead else nullcontext():
        made = _made(artifact, model)
        former = made["facts"]
        with manifest.unchanged(events):  # one that grows meanwhile would be learnt again tomorrow
            sha = manifest.digest_file(events[-1])
            if sha in former.get(LEARNT, ()):
                return None
            for folder in (artifact, artifact / "model") if lead else ():
                check_writable(folder)
            save, report = learn()
        if not lead:
            return report
        facts = {**former, LEARNT: [*former.get(LEARNT, ()), sha], "further": report}
        with scratch_in(artifact / "model") as scratch:
            save(scratch)
            written = {scratch / model.weights: artifact / "model" / model.weights}
            manifest.replace(artifact, model.stage, made, written, facts)
    return report


def _made(artifact: Path, model: Further) -> dict[str, Any]:
    """What the manifest says of the model, which is as it was made. Raises InputError, ArtifactError."""
    manifest.complete(artifact)
    made = manifest.read(artifact).get(model.stage)
    if made is None:
        problem = f"are given, but there is no {model.what} to train further"
        raise InputError("events", problem, "events of a model that was trained")
    if not manifest.is_good(artifact, model.stage, made["key"]):
        problem = f"is not the file that stage `{model.stage}` made{manifest.anew(artifact, model.stage)}"
        raise ArtifactError(artifact / "model" / model.weights, problem)
    return dict(made)


def check_new(learnt: np.ndarray, path: Path) -> np.ndarray:
    """`learnt` int64[n], the events of a file that are to be learnt, if there are any. Raises InputError."""
    if not len(learnt):
        raise InputError(str(path), "has no event that is not known already", "events that are new")
    return learnt


def tell_users(world: World, came: Came) -> None:
    """Rank 0 says how many users of the files are new: one who is spelled in another way is."""
    if world.rank:
        return
    if not came.known:
        problem = f"the data set has no user of the files: {came.first_new!r} is none, {came.one_known!r} one"
        print(f"warning: {problem}; are they spelled as there?", flush=True)
        return
    named = f", {came.first_new!r} first" if came.new else ""
    print(f"users of the files: {came.known} known, {came.new} new{named}", flush=True)


def behind_others(artifact: Path, files: Sequence[Events]) -> tuple[Merged, np.ndarray]:
    """Histories of the users of the last of `files`, and which of their events are to be learnt: int64[n], ascending.

    Those are the last file's, but no user's first: nothing is before it. The data set's and those of the files before
    are history alone. Raises InputError, ArtifactError.
    """
    of = merged([stored_events(artifact / "histories.parquet", files[-1].users), *files])
    first = np.isin(np.arange(len(of.item)), of.offsets[:-1])
    new = check_new(np.flatnonzero(of.file == len(files)), files[-1].path)
    learnt = new[~first[new]]
    if not len(learnt):
        problem = "has no new event but the first of a user, before which there is nothing"
        raise InputError(str(files[-1].path), problem, "events behind others of their users")
    return of, learnt


def before_file(artifact: Path, files: Sequence[Events], count: int, seed: int) -> tuple[Merged, np.ndarray]:
    """Histories before the last of `files` of users drawn at random, and all of their events but the first of each:
    int64[n], ascending, about `count`; fewer where there are no more. Raises ArtifactError.
    """
    path, before = artifact / "histories.parquet", files[:-1]
    users, counts = events_per_user(path, before)
    order = np.random.default_rng([seed, len(files)]).permutation(len(users))
    some = users.take(pa.array(order[: np.searchsorted(np.cumsum(counts[order]), count) + 1]))
    of = merged([stored_events(path, some), *(of_users(part, some) for part in before)])
    others = np.ones(len(of.item), bool)
    others[of.offsets[:-1][np.diff(of.offsets) > 0]] = False
    return of, np.flatnonzero(others)
