"""The local runtime: an ensemble in this process, without Triton. Same steps, same order, same answers.

It is how one debugs, how quality is measured, and what the served answers are tested against.
"""

from __future__ import annotations

import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from ensembles.description import Ensemble, Model
from ensembles.pre_infer import pre_infer
from ensembles.rank import rank
from ensembles.recommend import recommend
from ensembles.recommend_and_rank import recommend_and_rank
from ensembles.recommend_draft import recommend_draft
from ensembles.recommend_staged import recommend_staged
from genrec import leftovers, steps
from genrec.artifact import load_config
from genrec.draft.options import FILE_NAME as DRAFT_HEAD
from genrec.draft.options import has_draft
from genrec.engine.exported import check_engines
from genrec.engine.load import load_layout
from genrec.engine.load_ranker import create_pool
from genrec.errors import ArtifactError, GenrecError, InputError
from genrec.kv.arena import Arena
from genrec.manifest import verify as verify_files
from genrec.progress import ticking
from genrec.rank.kinds import check_ranker
from genrec.settings import Settings
from genrec.steps import Answer, Tensors
from genrec.steps.outcome import count
from genrec.target import DEFAULT
from genrec.words import command

SLOTS = 64
ENSEMBLES = {
    "beam": lambda levels: recommend(),
    "staged": recommend_staged,
    "draft": lambda levels: recommend_draft(),
    "rank": lambda levels: rank(),
    "recommend_and_rank": lambda levels: recommend_and_rank(),
}
RANKINGS = ("rank", "recommend_and_rank")


class LocalRuntime:
    """Run an ensemble's steps over batches of requests.

    `seconds` sums the time of every step by its model; `drafted` sums what drafts report, where there are any:
    candidates before verification, and those lost to it. `beside`: another whose steps are used where both have them.
    """

    def __init__(self, ensemble: Ensemble, settings: Settings, beside: LocalRuntime | None = None) -> None:
        self.ensemble = ensemble
        self.seconds: dict[str, float] = defaultdict(float)
        self.drafted = np.zeros(2, np.int64)
        shared = beside._steps if beside else {}
        self._own: dict[str, steps.Step] = {}
        try:
            for model in ensemble.models:
                if model.name not in shared:
                    self._own[model.name] = self._step(model, settings)
        except BaseException:
            self.close()
            raise
        self._steps: dict[str, steps.Step] = {**shared, **self._own}

    def _step(self, model: Model, settings: Settings) -> steps.Step:
        """The step behind a model; where another stands in its place, a subclass says which."""
        return steps.load(model.name, settings)

    def run(self, requests: Sequence[Tensors]) -> list[Answer]:
        """Ensemble inputs to ensemble outputs, one answer or error per request. Tensors have a leading 1."""
        known: list[Tensors] = [dict(request) for request in requests]
        failed: dict[int, GenrecError] = {}
        for step in self.ensemble.steps:
            alive = [place for place in range(len(known)) if place not in failed]
            inputs = [
                {own: known[p][shared] for own, shared in step.inputs.items() if shared in known[p]}
                for p in alive
            ]
            begun = time.perf_counter()
            answers = self._steps[step.model].run(inputs)
            self.seconds[step.model] += time.perf_counter() - begun
            for place, answer in zip(alive, answers, strict=True):
                if isinstance(answer, GenrecError):
                    count(answer)
                    failed[place] = answer
                else:
                    self.drafted += answer.get("drafted", np.zeros((1, 2), np.int64))[0]
                    count({own: answer[own] for own in step.outputs})
                    known[place].update({shared: answer[own] for own, shared in step.outputs.items()})
        outputs = [tensor.name for tensor in self.ensemble.outputs]
        return [
            failed.get(place) or {name: tensors[name] for name in outputs}
            for place, tensors in enumerate(known)
        ]

    def close(self) -> None:
        """Let the steps give back what they hold."""
        for step in self._own.values():
            getattr(step, "close", lambda: None)()


class LocalRecommender:
    """`recommend`, or with decoder `staged`, `draft`, `rank` or `recommend_and_rank` that ensemble, in this process.
    Use it in a `with`.

    Makes its own arena, and for rankings its own pool, and takes them away again.
    """

    def __init__(
        self, artifact: Path, beam_width: int = 128, target: str = DEFAULT, slots: int = SLOTS,
        decoder: str = "beam", verify: str = "every", **pool: Any,
    ) -> None:  # fmt: skip
        """`pool`: its sizes, the choice of the prefix and of the ranker, as in `Settings`."""
        verify_files(artifact)
        if decoder in RANKINGS:
            check_ranker(artifact, pool.get("ranker", "auto"))
        else:
            _check_decoder(artifact, decoder)
        config = load_config(artifact, target)
        leftovers.remove_of_the_dead()
        self._folder = tempfile.TemporaryDirectory(prefix=leftovers.own_prefix(), dir=leftovers.SHM)
        self.settings = Settings(
            artifact, Path(self._folder.name) / "arena", beam_width, target, verify=verify,
            **{"pool_fill": "none", **pool},
        )  # fmt: skip
        if decoder in RANKINGS:
            self.settings = replace(self.settings, pool=Path(self._folder.name) / "pool")
        try:
            if decoder == "staged":  # the others leave no KV behind
                Arena.create(
                    self.settings.arena, slots, load_layout(self.settings, config).slot_bytes
                ).close()
            if self.settings.pool:
                create_pool(self.settings, config)
            ensemble = ENSEMBLES[decoder](config.levels)
            check_engines(self.settings, [model.name for model in ensemble.models])
            self.ahead: LocalRuntime | None = None
            with ticking("loading the engines"):
                self.runtime = LocalRuntime(ensemble, self.settings)
                try:
                    if decoder in RANKINGS:
                        self.ahead = LocalRuntime(pre_infer(), self.settings, self.runtime)
                except BaseException:
                    self.runtime.close()
                    raise
        except BaseException:
            self._folder.cleanup()
            raise

    def recommend(
        self, histories: Sequence[Sequence[int]], top_k: int, exclude_history: bool = False
    ) -> list[Answer]:
        """One batch; the answers of `ensembles.recommend`, in order."""
        return self.runtime.run([request(history, top_k, exclude_history) for history in histories])

    def rank(
        self, asked: Sequence[tuple[Sequence[int], Sequence[int]]], top_k: int, user_id: int | None = None,
        **events: Any,
    ) -> list[Answer]:  # fmt: skip
        """One batch of (history, candidates); the answers of `ensembles.rank`, in order.

        `events`: as tensors, what an HSTU ranker reads beside items (`ensembles.rank.EVENTS`).
        """
        known: Tensors = events if user_id is None else {**events, "user_id": np.array([[user_id]], np.int64)}
        return self.runtime.run(
            [
                {
                    "candidates": np.array([list(candidates)], np.int64),
                    **known,
                    **_without_flag(history, top_k),
                }
                for history, candidates in asked
            ]
        )

    def pre_infer(
        self, histories: Sequence[Sequence[int]], user_id: int, deadline_ms: int | None = None, **events: Any
    ) -> list[Answer]:
        """One batch for one user, where rankings are; the answers of `ensembles.pre_infer`, in order.

        `events`: as for `rank`, without `now`.
        """
        known: Tensors = {**events, "user_id": np.array([[user_id]], np.int64)}
        if deadline_ms is not None:
            known["deadline_ms"] = np.array([[deadline_ms]], np.int64)
        wanted = ({"history": request(history, 1)["history"], **known} for history in histories)
        assert self.ahead is not None
        return self.ahead.run(list(wanted))

    def __enter__(self) -> LocalRecommender:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for runtime in filter(None, (self.ahead, self.runtime)):
            runtime.close()
        self._folder.cleanup()


def _check_decoder(artifact: Path, decoder: str) -> None:
    """Raises InputError; ArtifactError when the artifact has no draft head."""
    if decoder not in ENSEMBLES:
        raise InputError("decoder", f"is {decoder!r}", ", ".join(ENSEMBLES))
    if decoder == "draft" and not has_draft(artifact):
        made = f"{command('train', artifact, '--draft alone')} and {command('export', artifact)}"
        raise ArtifactError(artifact / "onnx" / DRAFT_HEAD, f"is missing; {made} make it")


def request(history: Sequence[int], top_k: int, exclude_history: bool = False) -> Tensors:
    """The tensors of one request. Raises InputError for what no INT64 can hold."""
    try:
        items = np.array([list(history)], np.int64).reshape(1, -1)
        wanted = np.array([[top_k]], np.int32)
    except (OverflowError, TypeError, ValueError) as error:
        raise InputError(
            "history", f"cannot be sent: {error}", "item ids within INT64, top_k within INT32"
        ) from error
    return {"history": items, "top_k": wanted, "exclude_history": np.array([[exclude_history]])}


def _without_flag(history: Sequence[int], top_k: int) -> Tensors:
    tensors = request(history, top_k)
    del tensors["exclude_history"]
    return tensors
