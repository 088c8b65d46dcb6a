"""`genrec import`: a generative recommender of Hugging Face's, as MiniOneRec, LC-Rec and OpenOneRec leave them.

Such a model is a language model whose vocabulary was given a token per code. Of the vocabulary an artifact keeps what a
request can need: the rows of the codes, level by level, and of the text around histories and of items. What it answers
stays the same, as scores are renormalised over valid codes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from genrec.catalogue.items import MEANING, Catalogue
from genrec.catalogue.semantic_id import check_sizes
from genrec.errors import ArtifactError, InputError
from genrec.files import read_json, scratch_in
from genrec.manifest import record, stage_key
from genrec.models.config import MODEL_TYPES, PROMPT, ModelConfig
from genrec.models.registry import CONFIG
from genrec.nn.checkpoint import EMBEDDING, HEAD, fitting, read_tensors, save_tensors, weights_file
from genrec.progress import ticking
from genrec.rank.item_tokens import find_tokens, save_item_tokens
from genrec.words import counted
from training.data.keys import number_keys
from training.data.sources import last_rows
from training.data.tables import ITEM, ITEMS_FILE, TITLE, read_table, required, text, where
from training.hugging_face.code_tokens import (
    HOLE,
    TOKENIZER,
    check_items,
    code_rows,
    read_codes,
    read_tokenizer,
)
from training.hugging_face.item_text import read_item_text
from training.hugging_face.prompt_text import PromptText, PromptTokens, prompt_tokens
from training.stages import load_histories, load_items, prepare
from training.vectors.quantise import collisions

MAX_HISTORY = 50  # items, where nobody says how many the model was trained on
ADAPTER = "adapter_config.json"
# End names of classes without a head over the vocabulary
OTHER_HEADS = ("Model", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering")
BUFFERS = "rotary_emb.inv_freq"  # ends names of what old releases of transformers kept beside the weights


def import_checkpoint(
    source: Path,
    artifact: Path,
    items: Path,
    semantic_ids: Path,
    prompt: Path | None = None,
    interactions: Path | None = None,
    templates: tuple[str, ...] | None = None,
    max_history: int | None = None,
    item_tokens: Path | None = None,
) -> list[str]:
    """Make the artifact folder of the checkpoint in `source`; all of it, or nothing. Returns what to tell people.

    `templates` say how a code of each level is spelled, where the file of semantic IDs does not. `item_tokens` are what
    a ranker is to read for an item, in numbers of the checkpoint. Raises InputError, ArtifactError.
    """
    if artifact.is_symlink() or (artifact.exists() and any(artifact.iterdir())):
        raise InputError(str(artifact), "is there already", "the name of a new folder")
    raw = _hugging_face_config(source / CONFIG)
    if not weights_file(source).is_file():
        advice = (
            "save_pretrained(folder) of transformers writes it; pickles, as pytorch_model.bin, are not read"
        )
        raise ArtifactError(weights_file(source), f"is missing; {advice}")
    given = [path for path in (items, semantic_ids, prompt, interactions, item_tokens) if path is not None]
    with _made(artifact) as out:
        notes = _write_items(out, items, interactions)
        catalogue, kept, around, own = _vocabulary(out, source, semantic_ids, prompt, templates, item_tokens)
        catalogue.save(out / "catalogue.parquet")
        if own.size:
            save_item_tokens(out, find_tokens(kept, own), kept)
        config = _config(raw, source / CONFIG, catalogue, kept, around, max_history)
        with ticking("reading the weights"):
            tensors = _of_rows(read_tensors(source), raw, kept, weights_file(source), source / CONFIG)
            fitting(tensors, config, weights_file(source))
            for name, tensor in tensors.items():
                if not tensor.isfinite().all():
                    raise ArtifactError(weights_file(source), f"{name} has NaN or infinite values")
        with ticking("writing the weights"):
            save_tensors(tensors, config, out / "model")
        settings = {"templates": templates, "max_history": config.max_history}
        key = stage_key(settings, [source / CONFIG, *given])
        _record(out, key, {"imported": str(source)}, catalogue.meaning)
    shared, sharing = collisions(catalogue.codes)
    codes = int((kept[: sum(config.codebook_sizes)] >= 0).sum())
    return [
        *notes,
        f"{counted(len(catalogue), 'item')}; {counted(codes, 'code')} in {' x '.join(map(str, config.codebook_sizes))}"
        + (
            f"; {counted(shared, 'semantic ID is', 'semantic IDs are')} shared by {sharing} items"
            if shared
            else ""
        ),
        f"{config.model_type} of {counted(config.num_hidden_layers, 'layer')} of {config.hidden_size};"
        f" prompts of up to {counted(config.max_history, 'item')}, {config.max_prompt} tokens",
    ]


def _record(out: Path, key: str, facts: dict[str, Any], meaning: str) -> None:
    """Under the stages that make these files elsewhere, so that a later run of one takes its files over."""
    files = {path for path in out.rglob("*") if path.is_file()}
    model = {path for path in files if path.parent.name == "model"}
    catalogue = {out / "catalogue.parquet"}
    record(out, "data", key, files - model - catalogue, facts)
    record(out, "tokenise", key, catalogue, facts)
    record(out, "train", key, model, {**facts, MEANING: meaning})


@contextmanager
def _made(artifact: Path) -> Iterator[Path]:
    """A folder that becomes `artifact` at the end, or goes away."""
    artifact.parent.mkdir(parents=True, exist_ok=True)
    with scratch_in(artifact.parent) as scratch:
        out = scratch / artifact.name
        out.mkdir()
        yield out
        out.replace(artifact)


def _hugging_face_config(path: Path) -> dict[str, Any]:
    """Of an architecture that we have. Raises ArtifactError, InputError."""
    if (path.parent / ADAPTER).exists() and not weights_file(path.parent).is_file():
        limit = "a whole model: merge_and_unload() of peft, then save_pretrained(folder)"
        raise InputError("source", f"{path.parent} has an adapter alone, as LoRA's", limit)
    if not path.exists():
        limit = "a Hugging Face folder, with config.json, tokenizer.json and safetensors"
        raise InputError("source", f"{path.parent} has no {path.name}", limit)
    raw = read_json(path)
    if not isinstance(raw, dict):
        raise ArtifactError(path, "is not a model configuration: no object")
    kind = raw.get("model_type")
    if kind not in MODEL_TYPES:
        known = f"decoders of {', '.join(MODEL_TYPES)}"
        more = ", an encoder-decoder" if raw.get("is_encoder_decoder") else ""
        raise InputError(f"{path}, model_type", f"is {kind!r}{more}", known)
    classes = raw.get("architectures")
    for built in classes if isinstance(classes, list) else ():
        if str(built).endswith(OTHER_HEADS):
            raise InputError(
                f"{path}, architectures", f"is {built}", "a model that writes text, as Qwen3ForCausalLM"
            )
    if raw.get("tie_word_embeddings") not in (None, True, False):
        problem = f"is {raw['tie_word_embeddings']!r}"
        raise InputError(f"{path}, tie_word_embeddings", problem, "true or false")
    positions = raw.get("max_position_embeddings")
    if positions is not None and type(positions) is not int:
        raise InputError(f"{path}, max_position_embeddings", f"is {positions!r}", "a whole number of tokens")
    # What no import reads is told before interactions are read, which may take long; the vocabulary follows on them.
    ours = {
        "codebook_sizes": (1,),
        "code_offsets": (),
        "vocab_size": 1,
        "max_history": 1,
        **dict.fromkeys(PROMPT, ()),
    }
    ModelConfig.of({**raw, **ours}, path)
    return raw


def _write_items(out: Path, items: Path, interactions: Path | None) -> list[str]:
    """`out`/items.parquet, and `out`/histories.parquet where there are interactions. Returns the report."""
    if interactions is not None:
        return prepare(
            out, interactions=interactions, items=items, key="import"
        )  # a new folder, with no steps
    table = read_table(items, ITEMS_FILE)
    keys = required(table, items, ITEM)
    rows = last_rows(keys)
    keys = keys.take(rows)
    ids, notes = number_keys(
        keys, "item", "items.parquet", lambda key: (str(items), where(items, rows[keys.index(key).as_py()]))
    )
    titles = text(table, items, TITLE).take(rows)
    columns = {"item_id": ids, "key": keys, "title": titles, "genre": [""] * len(rows)}
    pq.write_table(pa.table(columns).sort_by("item_id"), out / "items.parquet")
    return notes


def _vocabulary(
    out: Path, source: Path, semantic_ids: Path, prompt: Path | None, templates: tuple[str, ...] | None,
    item_tokens: Path | None,
) -> tuple[Catalogue, np.ndarray, PromptTokens, np.ndarray]:  # fmt: skip
    """The catalogue of n items; the rows of the vocabulary that are kept, int64[V], codes first and -1 for none; the
    text around histories and the items' own tokens int64[n, t], t = 0 where they have none, in rows of the old one.
    """
    known = load_items(out)
    ids, keys = known["item_id"].to_numpy(), known["key"].to_pylist()
    codes, templates = read_codes(semantic_ids, keys, templates)
    tokenizer, path = read_tokenizer(source), source / TOKENIZER
    rows = code_rows(tokenizer, templates, path)
    check_items(codes, keys, templates, rows, path)
    popularity = np.zeros(len(ids), np.int64)
    if (out / "histories.parquet").is_file():
        past = load_histories(out).cut(2)
        popularity = np.bincount(np.searchsorted(ids, past.items), minlength=len(ids))
    sizes = check_sizes([len(level) for level in rows])
    catalogue = Catalogue(ids, codes, known["title"].to_pylist(), popularity, sizes)
    around, own, text = PromptTokens([], [], []), np.zeros((len(ids), 0), np.int64), np.zeros(0, np.int64)
    if prompt is not None:
        spelled = _spelled(codes, rows, templates)
        around = prompt_tokens(tokenizer, PromptText.load(prompt), spelled, prompt)
    if item_tokens is not None:
        own, text = read_item_text(item_tokens, keys, tokenizer)
    of_codes = np.concatenate(rows)
    text = np.setdiff1d(np.concatenate((text, *around)).astype(np.int64), of_codes)
    return catalogue, np.concatenate((of_codes, text)), around, own


def _spelled(
    codes: np.ndarray, rows: list[np.ndarray], templates: Sequence[str]
) -> list[tuple[str, list[int]]]:
    """Three items of the catalogue, each as its text and as its tokens."""
    examples = []
    for item in codes[[0, len(codes) // 2, -1]].tolist():
        spelled = "".join(form.replace(HOLE, str(code)) for form, code in zip(templates, item, strict=True))
        examples.append((spelled, [int(level[code]) for level, code in zip(rows, item, strict=True)]))
    return examples


def _config(
    raw: dict[str, Any], path: Path, catalogue: Catalogue, kept: np.ndarray, around: PromptTokens,
    max_history: int | None,
) -> ModelConfig:  # fmt: skip
    """Ours, over a smaller vocabulary: the rows `kept` int64[V] of the old one."""
    before, between, after = (find_tokens(kept, np.array(part, np.int64)).tolist() for part in around)
    own = {
        "codebook_sizes": catalogue.codebook_sizes, "code_offsets": (), "vocab_size": len(kept),
        "max_history": max_history or MAX_HISTORY,
        "prompt_before": before, "prompt_between": between, "prompt_after": after,
    }  # fmt: skip
    config = ModelConfig.of({**raw, **own}, path)
    positions = raw.get("max_position_embeddings")
    if positions is None:
        return config
    each = config.levels + len(between)
    most = (positions - config.levels - config.prompt_length(1)) // each + 1
    if most < 1:
        limit = f"max_position_embeddings, {positions}"
        raise InputError(f"{path}, prompt", f"takes {config.prompt_length(1)} tokens for one item", limit)
    if max_history is not None and max_history > most:
        limit = f"1 to {most}: {path} has max_position_embeddings {positions}"
        raise InputError("max_history", f"is {max_history}, a prompt of {config.max_prompt} tokens", limit)
    if config.max_history > most:
        config = ModelConfig.of({**raw, **own, "max_history": most}, path)
    return config


def _of_rows(
    tensors: dict[str, Tensor], raw: dict[str, Any], kept: np.ndarray, path: Path, config: Path
) -> dict[str, Tensor]:
    """The checkpoint over the vocabulary's `kept` rows; what no token is, is zeros. Raises ArtifactError."""
    tensors = {name: tensor for name, tensor in tensors.items() if not name.endswith(BUFFERS)}
    tied = raw.get("tie_word_embeddings")
    if tied and HEAD in tensors:  # older releases of transformers tie the two, newer ones keep such a head
        if EMBEDDING in tensors and not torch.equal(tensors[HEAD], tensors[EMBEDDING]):
            problem = f"{HEAD} differs from {EMBEDDING}, and {config} says tie_word_embeddings true"
            raise ArtifactError(path, f"{problem}; where that head was trained, say false")
        del tensors[HEAD]
    if not tied and HEAD not in tensors:
        said = "says tie_word_embeddings false" if tied is False else "does not say tie_word_embeddings true"
        raise ArtifactError(path, f"lacks the tensor {HEAD}, and {config} {said}")
    wanted = torch.from_numpy(kept)
    for name in (EMBEDDING, HEAD):
        if name not in tensors:
            continue  # `fitting` says what is missing
        table = tensors[name]
        if table.dim() != 2 or len(table) != raw.get("vocab_size", len(table)):
            problem = (
                f"{name} has shape {tuple(table.shape)}, {config} has vocab_size {raw.get('vocab_size')}"
            )
            raise ArtifactError(path, problem)
        if int(kept.max()) >= len(table):
            problem = f"{name} has {len(table)} rows; {TOKENIZER} has a code or a text at {int(kept.max())}"
            raise ArtifactError(path, problem)
        tensors[name] = table[wanted.clamp(min=0)] * (wanted >= 0).to(table.dtype).unsqueeze(1)
    return tensors
