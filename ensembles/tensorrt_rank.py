"""The ensembles `rank` and `recommend_and_rank` of the target `tensorrt`: a ranking is one plan behind the prefill.

The user's KV goes from plan to plan on the GPU, and no pool keeps any: a ranking computes its user and its items, and
`recommend_and_rank` the user once for both. So nobody chooses a prefix, and reports say that nothing was reused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from build.tensorrt.profiles import MAX_BATCH
from build.tensorrt.ranker import RANK, plan_ranker
from ensembles import rank, recommend_and_rank
from ensembles.description import Ensemble, Model, Step, WarmUp
from ensembles.recommend import NO_PROMPT, SCORES, TICKET
from ensembles.tensorrt import (
    KV_TYPES,
    WARM_BEAMS,
    Plan,
    layer_names,
    only_read,
    prefill_plan,
    recommend_draft_tensorrt,
    recommend_tensorrt,
    shared_kv,
    warm_tokens,
)
from genrec.artifact import load_config
from genrec.draft.options import has_draft, load_options
from genrec.models.config import ModelConfig
from genrec.rank.options import RankerConfig

OF_THE_POOL = ("reuse", "delta", "plan")  # what a ranking without one has not


def _candidates_plan(config: ModelConfig, ranker: RankerConfig, dtype: str) -> Plan:
    inputs = (
        rank.CANDIDATE_TOKENS,
        rank.CODES,
        TICKET,
        *shared_kv(config, dtype, ranker.first_layer(config)),
    )
    dims = {tensor.name: (tensor.dims[0], warm_tokens(config), tensor.dims[-1]) for tensor in inputs[3:]}
    dims |= {"candidates": (WARM_BEAMS * ranker.item_tokens,), "codes": (WARM_BEAMS * config.levels,)}
    warmup = WarmUp("short", dims, {"ticket": NO_PROMPT["ticket"]})
    return Plan(RANK, inputs, (SCORES,), (warmup,), max_batch=MAX_BATCH)


def _lookup() -> Model:
    model = rank.RANK_LOOKUP
    warmups = tuple(replace(each, dims=_without_pool(each.dims)) for each in model.warmups)
    inputs = tuple(tensor for tensor in model.inputs if tensor.name not in OF_THE_POOL)
    return replace(model, inputs=inputs, warmups=warmups)


def _without_pool(named: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in named.items() if name not in OF_THE_POOL}


def _models(config: ModelConfig, ranker: RankerConfig, dtype: str) -> tuple[Model, ...]:
    return (rank.ENCODE_CANDIDATES, _candidates_plan(config, ranker, dtype), _lookup())


def _made(config: ModelConfig, first: int = 0) -> dict[str, str]:
    """The prompt's KV of the layers from `first` on, by the same names everywhere."""
    return {f"shared_{name}": f"shared_{name}" for name in layer_names(config, first)}


def _steps(
    config: ModelConfig, ranker: RankerConfig, request: dict[str, str], prompt: str, before: str = ""
) -> list[Step]:
    """Those of a ranking over the KV of the prompt that has the ticket `prompt`."""
    encode, _, score, lookup = rank.rank_steps(request, before)
    kv = _made(config, ranker.first_layer(config))
    asked = {name: score.inputs[name] for name in ("candidates", "codes")}
    return [
        encode,
        Step(RANK, {**asked, "ticket": prompt, **kv}, {"scores": lookup.inputs["scores"]}),
        replace(lookup, inputs=_without_pool(lookup.inputs)),
    ]


def rank_tensorrt(config: ModelConfig, ranker: RankerConfig, kv_type: str = "f16") -> Ensemble:
    """`rank`: the user's prompt is computed here."""
    plain, dtype = rank.rank(), KV_TYPES[kv_type]
    encode, *rest = _steps(config, ranker, {each.name: each.name for each in rank.REQUEST}, "ticket")
    prefill = Step("prefill", {"prompt": "tokens", "ticket": "ticket"}, _made(config))
    models = (prefill_plan(config, dtype), *_models(config, ranker, dtype))
    steps = only_read([encode, prefill, *rest], plain)
    return Ensemble("rank", plain.inputs, plain.outputs, models, steps, MAX_BATCH)


def recommend_and_rank_tensorrt(config: ModelConfig, ranker: RankerConfig, kv_type: str = "f16") -> Ensemble:
    """`recommend_and_rank`: the steps of `recommend`, then a ranking over the KV that they began with."""
    plain, found = recommend_and_rank.recommend_and_rank(), recommend_tensorrt(config, kv_type)
    first, prefill, *middle, last = found.steps
    # With one level no decode reads its KV
    prefill = replace(prefill, outputs={**prefill.outputs, **_made(config)})
    retrieved = {name: f"found_{name}" for name in ("item_ids", "scores")}
    (asked,) = [step.inputs for step in plain.steps if step.model == "encode_candidates"]
    # No pool: nothing is kept of anybody
    asked = {own: shared for own, shared in asked.items() if own != "owner"}
    steps = [
        replace(first, inputs=recommend_and_rank.RETRIEVAL), prefill, *middle, replace(last, outputs=retrieved),
        *_steps(config, ranker, asked, "ticket", before="rank_"),
    ]  # fmt: skip
    models = (*found.models, *_models(config, ranker, KV_TYPES[kv_type]))
    return Ensemble(
        "recommend_and_rank", plain.inputs, plain.outputs, models, only_read(steps, plain), MAX_BATCH
    )


def served_tensorrt(
    config: ModelConfig,
    kv_type: str = "f16",
    placeholders: int | None = None,
    ranker: RankerConfig | None = None,
) -> tuple[Ensemble, ...]:
    """`recommend`; `recommend_draft` where the generator has a draft head, read behind so many placeholders; rankings
    where there is a `ranker` that plans can run.
    """
    drafts = () if placeholders is None else (recommend_draft_tensorrt(config, placeholders),)
    rankings = (
        ()
        if ranker is None
        else (rank_tensorrt(config, ranker, kv_type), recommend_and_rank_tensorrt(config, ranker, kv_type))
    )
    return (recommend_tensorrt(config, kv_type), *drafts, *rankings)


def ensembles_of(artifact: Path, kv_type: str) -> tuple[Ensemble, ...]:
    """What an artifact's plans of this type serve. Raises ArtifactError."""
    config = load_config(artifact, "tensorrt")
    placeholders = load_options(artifact).placeholder_tokens(config) if has_draft(artifact) else None
    return served_tensorrt(config, kv_type, placeholders, plan_ranker(artifact))
