"""Small checkpoints in the layouts that MiniOneRec, LC-Rec and OpenOneRec publish: random weights, all else real."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

ITEMS, CODES = 60, 9
TEXT = "Here is what a person has looked at, oldest first, and what comes next? ### Answer:\n user assistant system"
SHAPE = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 256,
    "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0},
}  # fmt: skip


@dataclass(frozen=True)
class Published:
    """What a family publishes: the model's class, how levels spell codes, the prompt's fields, the weights' type."""

    model: str
    templates: tuple[str, ...]
    prompt: dict[str, object] | None
    dtype: torch.dtype
    tied: bool
    every_code: bool  # in the vocabulary, in order; else those of items alone, sorted as text

    def text(self, items: dict[str, list[str]], history: list[str]) -> str:
        """The prompt of a history, written by plain formatting; `items` are tokens by key."""
        prompt = self.prompt or {"text": "{history}"}
        written = [prompt.get("item", "{codes}").replace("{codes}", "".join(items[key])) for key in history]
        return prompt["text"].replace("{history}", prompt.get("separator", "").join(written))


LAYOUTS = {
    "minionerec": Published(
        "Qwen2ForCausalLM", ("<a_{}>", "<b_{}>", "<c_{}>"),
        {"text": "Here is what a person has looked at: {history}\n\n### Answer:\n", "separator": ", "},
        torch.bfloat16, True, False,
    ),
    "lc-rec": Published(
        "LlamaForCausalLM", ("<a_{}>", "<b_{}>", "<c_{}>", "<d_{}>"),
        {"text": "Here is what a person has looked at: {history}, oldest first. What comes next?\n\n### Answer:",
         "separator": ", "},
        torch.float16, False, False,
    ),
    "openonerec": Published(
        "Qwen3ForCausalLM", ("<s_a_{}>", "<s_b_{}>", "<s_c_{}>"),
        {"text": "<|im_start|>user\nHere is what a person has looked at:\n{history}<|im_end|>\n"
                 "<|im_start|>assistant\n<think>\n\n</think>\n<|sid_begin|>",
         "item": "<|sid_begin|>{codes}<|sid_end|>", "special_tokens": False},
        torch.bfloat16, False, True,
    ),
    "codes": Published(
        "Qwen2ForCausalLM", ("<a_{}>", "<b_{}>", "<c_{}>"), None, torch.float32, True, False
    ),
}  # fmt: skip
MARKS = ("<|im_start|>", "<|im_end|>", "<|sid_begin|>", "<|sid_end|>")


@dataclass(frozen=True)
class Folders:
    """A checkpoint with what comes beside it; `items` are each item's tokens, as text, by its key."""

    layout: Published
    checkpoint: Path
    options: dict[str, Path]
    items: dict[str, list[str]]

    def text(self, history: list[str]) -> str:
        """The prompt of a history of keys."""
        return self.layout.text(self.items, history)


def publish(folder: Path, name: str) -> Folders:
    """Write `folder`/checkpoint by transformers, and item.json, index.json and prompt.json beside it."""
    layout = LAYOUTS[name]
    folder.mkdir(parents=True, exist_ok=True)
    draw = np.random.default_rng(7)
    codes = draw.choice(np.arange(CODES) * 3, (ITEMS, len(layout.templates)))  # there are gaps between codes
    codes[1] = codes[0]
    items = {
        str(key): [form.format(code) for form, code in zip(layout.templates, item, strict=True)]
        for key, item in zip(draw.permutation(ITEMS) + 100, codes.tolist(), strict=True)
    }
    options = {"items": folder / "x.item.json", "semantic_ids": folder / "x.index.json"}
    options["items"].write_text(json.dumps({key: {"title": f"item {key}", "brand": ""} for key in items}))
    options["semantic_ids"].write_text(json.dumps(items))
    if layout.prompt:
        options["prompt"] = folder / "prompt.json"
        options["prompt"].write_text(json.dumps(layout.prompt))
    save_checkpoint(layout, items, folder / "checkpoint")
    return Folders(layout, folder / "checkpoint", options, items)


def save_checkpoint(layout: Published, items: dict[str, list[str]], folder: Path) -> None:
    """Tokenizer and model, in shards, over the codes of `items`."""
    tokenizer = _tokenizer(layout, items)
    tokenizer.save_pretrained(folder)
    _model(layout, len(tokenizer) + 5).save_pretrained(folder, max_shard_size="8KB")


@torch.no_grad()
def their_beams(
    model: transformers.PreTrainedModel, prompt: list[int], items: list[list[int]], width: int
) -> dict[tuple[int, ...], float]:
    """transformers' constrained beam search, renormalised over what is allowed: a path's tokens -> its score."""
    following: dict[tuple[int, ...], set[int]] = {}
    for item in items:
        for level, token in enumerate(item):
            following.setdefault(tuple(item[:level]), set()).add(token)

    def allowed(_: int, beam: torch.Tensor) -> list[int]:
        # A beam of score -inf, of which there are some while there are fewer paths than beams, needs a token too.
        return sorted(following.get(tuple(beam[len(prompt) :].tolist()), {0}))

    levels = len(items[0])
    found = model.generate(
        torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.long), do_sample=False,
        num_beams=width, num_return_sequences=width, max_new_tokens=levels, min_new_tokens=levels,
        prefix_allowed_tokens_fn=allowed, renormalize_logits=True, length_penalty=0.0, pad_token_id=0,
        return_dict_in_generate=True, output_scores=True,
    )  # fmt: skip
    paths = [tuple(path) for path in found.sequences[:, len(prompt) :].tolist()]
    return dict(zip(paths, found.sequences_scores.tolist(), strict=True))


def _tokenizer(layout: Published, items: dict[str, list[str]]) -> transformers.PreTrainedTokenizerFast:
    llama = layout.model.startswith("Llama")
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>" if llama else None))
    if llama:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        tokenizer.decoder = decoders.Metaspace()
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320, special_tokens=["<unk>", "<s>", "</s>"] if llama else ["<|endoftext|>"],
        initial_alphabet=sorted(set(TEXT)) if llama else pre_tokenizers.ByteLevel.alphabet(), show_progress=False,
    )  # fmt: skip
    tokenizer.train_from_iterator([TEXT] * 5, trainer)
    if llama:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
        )
    whole = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="</s>" if llama else "<|endoftext|>"
    )
    if layout.every_code:
        whole.add_tokens([form.format(code) for form in layout.templates for code in range(3 * CODES)])
        whole.add_special_tokens({"additional_special_tokens": list(MARKS)})
    else:
        whole.add_tokens(sorted({token for tokens in items.values() for token in tokens}))
    return whole


def _model(layout: Published, vocabulary: int) -> transformers.PreTrainedModel:
    """Its vocabulary is larger than the tokenizer's, as Qwen's is."""
    torch.manual_seed(3)
    kind = getattr(transformers, layout.model)
    config = kind.config_class(vocab_size=vocabulary, tie_word_embeddings=layout.tied, **SHAPE)
    model = kind(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model.to(layout.dtype)
