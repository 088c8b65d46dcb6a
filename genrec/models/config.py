"""The shape of a generator, in Hugging Face terms, plus the blocks of codes its vocabulary holds."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from itertools import accumulate
from pathlib import Path
from typing import Any

from genrec.errors import ArtifactError, InputError
from genrec.files import read_json
from genrec.json_fields import check_fields

SIZES = (
    "max_history", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
    "intermediate_size",
)  # fmt: skip
MOST = 2**20  # of any size: tensors of two or three of them can still be thought of
PROMPT = ("prompt_before", "prompt_between", "prompt_after")
MODEL_TYPES = ("qwen3", "qwen2", "llama")
# By model type, keys that give it biases; a Qwen2 has always the same ones.
BIASES = {"qwen3": ("attention_bias",), "llama": ("attention_bias", "mlp_bias")}


@dataclass(frozen=True)
class ModelConfig:
    """A Qwen3-shaped decoder over semantic IDs; field names are those of a Hugging Face config.json.

    `codebook_sizes` is (T_1, ..., T_L); token of code c at level l is `code_offsets[l-1] + c`.
    `max_history` is the number of items kept of a history, the newest ones. A model that was trained on text around
    them has its tokens in `prompt_before`, `prompt_between` and `prompt_after` (`genrec.models.prompt`).
    """

    codebook_sizes: tuple[int, ...]
    max_history: int
    hidden_size: int = 128
    num_hidden_layers: int = 2
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 32
    intermediate_size: int = 256
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-6
    model_type: str = "qwen3"
    vocab_size: int = 0
    code_offsets: tuple[int, ...] = ()
    prompt_before: tuple[int, ...] = ()
    prompt_between: tuple[int, ...] = ()
    prompt_after: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        sizes = tuple(int(t) for t in self.codebook_sizes)
        if not sizes or min(sizes) < 1:
            raise InputError("codebook_sizes", f"is {list(sizes)}", "at least one level, every size >= 1")
        offsets = tuple(self.code_offsets) or (0, *accumulate(sizes[:-1]))
        object.__setattr__(self, "codebook_sizes", sizes)
        object.__setattr__(self, "code_offsets", offsets)
        object.__setattr__(self, "vocab_size", self.vocab_size or sum(sizes))
        if self.model_type not in MODEL_TYPES:
            raise InputError("model_type", f"is {self.model_type!r}", f"one of {', '.join(MODEL_TYPES)}")
        for name in SIZES:
            size = getattr(self, name)
            if type(size) is not int or not 1 <= size <= MOST:
                raise InputError(name, f"is {size!r}", f"a whole number, 1 or more, {MOST} at most")
        if self.head_dim % 2:
            raise InputError("head_dim", f"is {self.head_dim}", "an even number: angles turn pairs")
        for name in ("rope_theta", "rms_norm_eps"):
            number = getattr(self, name)
            if type(number) not in (int, float) or not 0 < number < 1e30:  # NaN is not
                raise InputError(name, f"is {number!r}", "a number above 0, below 1e30")
        if self.num_attention_heads % self.num_key_value_heads:
            raise InputError("num_key_value_heads", "does not divide num_attention_heads", "a divisor")
        if (
            len(offsets) != len(sizes)
            or max(o + t for o, t in zip(offsets, sizes, strict=True)) > self.vocab_size
        ):
            raise InputError("code_offsets", "blocks leave the vocabulary", f"{self.vocab_size} tokens")
        for name in PROMPT:
            if not all(0 <= token < self.vocab_size for token in getattr(self, name)):
                raise InputError(name, "leaves the vocabulary", f"tokens 0 to {self.vocab_size - 1}")

    @property
    def levels(self) -> int:
        """L, the number of codes in a semantic ID."""
        return len(self.codebook_sizes)

    @property
    def has_text(self) -> bool:
        """Whether a prompt holds more than codes."""
        return any(getattr(self, name) for name in PROMPT)

    def check_codes_alone(self, what: str, other_way: str = "") -> None:
        """Refuse to train, beside this generator, what knows no text between items. Raises InputError."""
        if self.has_text:
            problem = f"reads text around items, which {what} does not"
            raise InputError("model", problem, f"prompts of codes alone{other_way}")

    def prompt_length(self, items: int) -> int:
        """S of a history of this many items: L tokens for each, and the text around them; none for none."""
        if not items:
            return 0
        text = len(self.prompt_before) + (items - 1) * len(self.prompt_between) + len(self.prompt_after)
        return items * self.levels + text

    @property
    def max_prompt(self) -> int:
        """Largest S."""
        return self.prompt_length(self.max_history)

    @property
    def graph_names(self) -> list[str]:
        """The passes of the model, each a graph: prefill, then a decode for every level after the first."""
        return ["prefill", *(f"decode_{level}" for level in range(2, self.levels + 1))]

    def save(self, path: Path) -> None:
        """Write config.json."""
        path.write_text(json.dumps(asdict(self), indent=2) + "\n")

    @classmethod
    def load(cls, path: Path) -> ModelConfig:
        """Read config.json; keys this decoder has no use for are ignored. Raises ArtifactError.

        Hugging Face's files need `codebook_sizes` and `max_history` added, and `code_offsets` where the blocks of
        codes do not fill the vocabulary from its start.
        """
        return cls.of(read_json(path), path)

    @classmethod
    def of(cls, raw: Any, path: Path) -> ModelConfig:
        """As `load`, of what `path` held and the keys that were added to it. Raises ArtifactError."""
        lists = {name: tuple[int, ...] for name in ("codebook_sizes", "code_offsets", *PROMPT)}
        given = check_fields(raw, {}, path)
        check_fields(given, {name: lists[name] for name in lists.keys() & given}, path)
        try:
            return cls(**_own_keys(raw, {f.name for f in fields(cls)}))
        except (ValueError, TypeError, AttributeError, InputError) as error:
            raise ArtifactError(path, f"not a readable model configuration: {error}") from error


def _own_keys(raw: dict[str, Any], known: set[str]) -> dict[str, Any]:
    """A config.json's keys under this class's names. Raises InputError for what would silently compute otherwise."""
    rope, scaling = raw.get("rope_parameters"), raw.get("rope_scaling")
    if rope and scaling and rope != scaling:
        raise InputError("rope_scaling", f"is {scaling!r}", f"{rope!r}, as in rope_parameters")
    rope = rope or scaling or {}
    if not isinstance(rope, dict) or any(isinstance(each, dict) for each in rope.values()):
        raise InputError("rope_parameters", f"is {rope!r}", "one object for all layers")
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default":
        raise InputError("rope_scaling", f"is of type {kind!r}", "default")
    turned = raw.get("partial_rotary_factor", rope.get("partial_rotary_factor"))
    if turned not in (None, 1):
        raise InputError("partial_rotary_factor", f"is {turned!r}", "1")
    if raw.get("hidden_act", "silu") != "silu":
        raise InputError("hidden_act", f"is {raw['hidden_act']!r}", "silu")
    for name in BIASES.get(str(raw.get("model_type")), ()):
        if raw.get(name):
            raise InputError(name, "is true", "false: biases are read of a qwen2 alone")
    if raw.get("use_sliding_window"):
        raise InputError("use_sliding_window", "is true", "false")
    if set(raw.get("layer_types") or ()) - {"full_attention"}:
        raise InputError("layer_types", f"is {raw['layer_types']}", "full_attention alone")
    if raw.get("quantization_config"):
        raise InputError("quantization_config", "is there", "weights as they were trained, not quantised")
    own = {
        key: tuple(value) if isinstance(value, list) else value for key, value in raw.items() if key in known
    }
    theta = own.setdefault("rope_theta", rope.get("rope_theta", 10000.0))
    said = rope.get("rope_theta", theta)
    if said is not theta and said != theta:
        raise InputError("rope_theta", f"is {theta}", f"{said}, as in rope_parameters")
    hidden, heads = raw.get("hidden_size"), raw.get("num_attention_heads")
    if own.get("num_key_value_heads") is None and heads is not None:
        own["num_key_value_heads"] = heads  # configurations of the first Llamas do not have it
    if own.get("head_dim") is None:
        if raw.get("model_type") == "qwen3":
            own["head_dim"] = 128  # as transformers has it, whatever the sizes
        elif type(hidden) is type(heads) is int and heads > 0:
            own["head_dim"] = hidden // heads
    return own
