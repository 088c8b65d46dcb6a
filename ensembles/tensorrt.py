"""The ensembles of the target `tensorrt`: prefill, every decode and the draft's prefill are plans, the rest is Python.

The chain is that of `ensembles.recommend_staged`, with one edge typed anew: where the KV arena's handle went from step
to step, the KV itself goes, as tensors that stay on the GPU between two models of Triton's tensorrt backend. So
beam search takes logits, and each level's decode is a model of its own (it has its own block of the head and its
own number of unshared tokens). `recommend_draft` differs from the default target's in one model: its prefill is a plan
and takes the prompt. The shapes are a model's, so the descriptions are made from its configuration.
"""

from __future__ import annotations

from dataclasses import replace

from build.tensorrt.profiles import MAX_BATCH
from ensembles.description import Ensemble, Model, Step, Tensor, WarmUp
from ensembles.recommend import NO_PROMPT, PATHS, TICKET
from ensembles.recommend_draft import recommend_draft
from ensembles.recommend_staged import CODES, PARENTS, PREFILL_DELAY_US, recommend_staged
from genrec.models.config import ModelConfig
from genrec.settings import SPAN

PROMPT = Tensor("prompt", "INT32", (-1,))
LOGITS = Tensor("logits", "FP32", (-1, -1))
KV_TYPES = {"f32": "FP32", "f16": "FP16", "bf16": "BF16"}
WARM_BEAMS = 4


class Plan(Model):
    """A model of Triton's tensorrt backend; its file is `1/model.plan`."""


def layer_names(config: ModelConfig, first: int = 0) -> list[str]:
    """k and v of the layers from `first` on, in the order of the graphs: `k_0`, `v_0`, `k_1`, ..."""
    return [f"{kind}_{n}" for n in range(first, config.num_hidden_layers) for kind in "kv"]


def _earlier(config: ModelConfig, level: int) -> list[tuple[str, int]]:
    """The unshared tokens that the decode of `level` reads: (name of a layer's k or v, which token)."""
    layers = range(config.num_hidden_layers)
    return [(f"{kind}_{n}", u) for n in layers for u in range(level - 2) for kind in "kv"]


def _named(unshared: tuple[str, int]) -> str:
    return f"unshared_{unshared[0]}_{unshared[1]}"


def shared_kv(config: ModelConfig, dtype: str, first: int = 0) -> tuple[Tensor, ...]:
    """The prompt's, of the layers from `first` on."""
    dims = (config.num_key_value_heads, -1, config.head_dim)
    return tuple(Tensor(f"shared_{name}", dtype, dims) for name in layer_names(config, first))


def _unshared(config: ModelConfig, dtype: str, names: list[str]) -> tuple[Tensor, ...]:
    dims = (-1, config.num_key_value_heads, config.head_dim)
    return tuple(Tensor(name, dtype, dims) for name in names)


def _logits(config: ModelConfig, level: int) -> Tensor:
    return Tensor("logits", "FP32", (1 if level == 1 else -1, config.codebook_sizes[level - 1]))


def _plan(config: ModelConfig, name: str, inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...]) -> Plan:
    """A plan with one warm-up of a short prompt; Triton is ready when it has run."""
    dims = {
        t.name: tuple(d if d > 0 else _warm(config, t) for d in t.dims) for t in inputs if t.name != "ticket"
    }
    warmup = WarmUp("short", dims, {"ticket": NO_PROMPT["ticket"]})
    return Plan(name, inputs, outputs, (warmup,), queue_delay_us=PREFILL_DELAY_US, max_batch=MAX_BATCH)


def _warm(config: ModelConfig, tensor: Tensor) -> int:
    return warm_tokens(config) if tensor.name == "prompt" or tensor.name.startswith("shared_") else WARM_BEAMS


def warm_tokens(config: ModelConfig) -> int:
    """Of a warm-up's prompt: a plan takes no longer one than its model."""
    return min(SPAN, config.max_prompt)


def prefill_plan(config: ModelConfig, dtype: str) -> Plan:
    """Of the prompt."""
    return _plan(config, "prefill", (PROMPT, TICKET), (_logits(config, 1), *shared_kv(config, dtype)))


def _decode(config: ModelConfig, dtype: str, level: int) -> Plan:
    unshared = [_named(p) for p in _earlier(config, level)]
    beams = (TICKET, PATHS, PARENTS) if unshared else (TICKET, PATHS)
    before = _unshared(config, dtype, [f"before_{name}" for name in unshared])
    kept = [f"kept_{name}" for name in unshared]
    newest = [f"new_unshared_{name}" for name in layer_names(config)]
    given = _unshared(config, dtype, [*newest, *kept]) if level < config.levels else ()
    return _plan(
        config,
        f"decode_{level}",
        (*beams, *shared_kv(config, dtype), *before),
        (_logits(config, level), *given),
    )


def _decode_step(config: ModelConfig, level: int) -> Step:
    """The KV of level `level - 1`'s token is that decode's `newest`, of the tokens before it what it kept."""
    former = level - 1
    inputs = {"ticket": "ticket", "paths": f"paths_{former}"}
    inputs |= {f"shared_{name}": f"shared_{name}" for name in layer_names(config)}
    unshared = _earlier(config, level)
    if unshared:
        inputs["parents"] = f"parents_{former}"
    for name, u in unshared:
        latest = u == level - 3
        inputs[f"before_unshared_{name}_{u}"] = (
            f"new_unshared_{name}_of_{former}" if latest else f"kept_{name}_{u}_of_{former}"
        )
    outputs = {"logits": f"logits_{level}"}
    if level < config.levels:
        outputs |= {f"new_unshared_{name}": f"new_unshared_{name}_of_{level}" for name in layer_names(config)}
        outputs |= {f"kept_unshared_{name}_{u}": f"kept_{name}_{u}_of_{level}" for name, u in unshared}
    return Step(f"decode_{level}", inputs, outputs)


def _of_logits(model: Model) -> Model:
    """Beam search with logits where the handle was. A plan scores all beams: it batches requests of one width."""
    inputs = (LOGITS, *model.inputs[1:])
    warmups = tuple(
        replace(w, dims={"logits": (1, 1), **{k: d for k, d in w.dims.items() if k != "kv"}})
        for w in model.warmups
    )
    outputs = tuple(tensor for tensor in model.outputs if tensor != CODES)
    return replace(model, inputs=inputs, outputs=outputs, warmups=warmups)


def recommend_tensorrt(config: ModelConfig, kv_type: str = "f16") -> Ensemble:
    """The ensemble for one generator; `kv_type` (`f32`, `f16`, `bf16`) is the type of its plans."""
    dtype, plain = KV_TYPES[kv_type], recommend_staged(config.levels)
    python = {model.name: model for model in plain.models if model.name not in ("prefill", "decode")}
    python["beam_search"] = _of_logits(python["beam_search"])
    plans = [prefill_plan(config, dtype), *(_decode(config, dtype, n) for n in range(2, config.levels + 1))]
    steps: list[Step] = []
    level = 1
    for step in plain.steps:
        if step.model == "prefill":
            shared = {f"shared_{name}": f"shared_{name}" for name in layer_names(config)}
            outputs = {"logits": "logits_1", **shared}
            steps.append(Step("prefill", {"prompt": "tokens", "ticket": "ticket"}, outputs))
        elif step.model == "decode":
            level += 1
            steps.append(_decode_step(config, level))
        elif step.model == "beam_search":
            others = {own: shared for own, shared in step.inputs.items() if own != "kv"}
            given = {own: shared for own, shared in step.outputs.items() if own != CODES.name}
            steps.append(replace(step, inputs={"logits": f"logits_{level}", **others}, outputs=given))
        else:
            steps.append(step)
    models = (*python.values(), *plans)
    return Ensemble("recommend", plain.inputs, plain.outputs, models, only_read(steps, plain), MAX_BATCH)


def only_read(steps: list[Step], plain: Ensemble) -> tuple[Step, ...]:
    """The steps without what nobody reads, which Triton refuses: a plan reads no parents where it has no earlier KV."""
    read = {name for step in steps for name in step.inputs.values()} | {each.name for each in plain.outputs}
    return tuple(
        replace(step, outputs={own: shared for own, shared in step.outputs.items() if shared in read})
        for step in steps
    )


def _prefill_draft(config: ModelConfig, placeholders: int) -> Plan:
    """States stay float32 whatever the plan's type, because the draft head reads them on the host."""
    states = Tensor("states", "FP32", ((1 + placeholders) * config.hidden_size,))
    return _plan(config, "prefill_draft", (PROMPT, TICKET), (states,))


def recommend_draft_tensorrt(config: ModelConfig, placeholders: int) -> Ensemble:
    """`recommend_draft` for one generator with a draft head; its draft is made on the host, as everywhere."""
    plain = recommend_draft()
    plan = _prefill_draft(config, placeholders)
    models = tuple(plan if model.name == plan.name else model for model in plain.models)
    steps = tuple(
        replace(step, inputs={"prompt": "tokens", "ticket": "ticket"}) if step.model == plan.name else step
        for step in plain.steps
    )
    return replace(plain, models=models, steps=only_read([*steps], plain), max_batch=MAX_BATCH)
