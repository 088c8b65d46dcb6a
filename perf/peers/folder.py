"""The models that are compared: an artifact of ours, and the very same weights in the formats of the peers."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from genrec.artifact import load_config
from genrec.catalogue.indices import load_validity
from genrec.catalogue.items import Catalogue
from genrec.catalogue.load import load_catalogue
from genrec.catalogue.semantic_id import pack
from genrec.catalogue.validity import ValidityIndex
from genrec.manifest import digest_file
from genrec.models.config import ModelConfig
from perf.kit.mock import SHAPE, mock_artifact
from perf.kit.work import Work, beams_of_passes, work
from perf.peers.refusal import Refusal, last_line

ITEMS = 100_000
LONGEST = 341  # items of the longest prompt: 1,023 tokens
# Untied heads; parameters with embeddings: 31 M and 101 M.
SHAPES = {
    "30m": replace(SHAPE, max_history=LONGEST),
    "100m": ModelConfig(
        (8192, 8192, 8192), LONGEST, hidden_size=768, num_hidden_layers=9, num_attention_heads=12,
        num_key_value_heads=6, head_dim=64, intermediate_size=2304,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class PeerModel:
    """A folder with `artifact`, `hugging_face` and whatever else a peer wants of the same weights."""

    name: str
    folder: Path

    @classmethod
    def make(cls, name: str, folder: Path, config: ModelConfig, items: int = ITEMS) -> PeerModel:
        """The model in `folder`, made with random weights and a random catalogue unless it is there."""
        model = cls(name, folder)
        mock_artifact(model.artifact, config, items)
        write_hugging_face(model.artifact, folder / "hugging_face")
        np.save(folder / "items.npy", model.tokens)
        return model

    @property
    def artifact(self) -> Path:
        """Ours."""
        return self.folder / "artifact"

    @cached_property
    def config(self) -> ModelConfig:
        """Its shape."""
        return load_config(self.artifact)

    def work(self, prompt: int, width: int) -> Work:
        """Of a request of ours: a beam that is an item already is not scored. Bytes as in float32."""
        return work(self.config, prompt, width, "f32", beams_of_passes(self._index, width))

    @cached_property
    def _index(self) -> ValidityIndex:
        return load_validity(self.artifact, self.config)

    @cached_property
    def catalogue(self) -> Catalogue:
        """Its items."""
        return load_catalogue(self.artifact, self.config)

    @cached_property
    def tokens(self) -> NDArray[np.int64]:
        """Semantic IDs by catalogue row, as tokens of the one vocabulary: int64[n, L]."""
        return self.catalogue.codes.astype(np.int64) + np.array(self.config.code_offsets)

    @cached_property
    def _sorted_ids(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        ids = pack(self.catalogue.codes, self.config.codebook_sizes)
        order = np.argsort(ids, kind="stable")
        return ids[order], order

    def rows_of(self, tokens: ArrayLike) -> NDArray[np.int64]:
        """The catalogue row of each token tuple int[W, L], -1 for what is no item's: int64[W]."""
        codes = np.asarray(tokens, np.int64) - np.array(self.config.code_offsets)
        inside = ((codes >= 0) & (codes < self.config.codebook_sizes)).all(axis=1)
        wanted = pack(np.where(inside[:, None], codes, 0), self.config.codebook_sizes)
        ids, order = self._sorted_ids
        place = np.searchsorted(ids, wanted).clip(max=len(ids) - 1)
        return np.where(inside & (ids[place] == wanted), order[place], -1)

    def converted(self, name: str, command: list[str]) -> Path:
        """`folder`/`name`, made by `command` {hugging_face} {out} unless it is of these weights. Raises Refusal."""
        out, source = self.folder / name, self.folder / "hugging_face"
        made_of = json.dumps([command, digest_file(source / "model.safetensors")])
        mark = out / "made_of.json"
        if not mark.is_file() or mark.read_text() != made_of:
            shutil.rmtree(out, ignore_errors=True)
            print(f"converting {self.name} for {name}", file=sys.stderr)
            argv = [part.format(hugging_face=source, out=out) for part in command]
            done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            if done.returncode:
                raise Refusal(f"not convertible: {last_line(done.stdout)}")
            mark.write_text(made_of)
        return out


def write_hugging_face(artifact: Path, folder: Path) -> None:
    """The artifact's generator as a `Qwen3ForCausalLM` folder; the weights are the same file.

    The vocabulary is ours: one block of codes per level, one token per code. The tokenizer is there because
    some peers do not start without one; nothing is tokenised.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config = load_config(artifact)
    (folder / "config.json").write_text(json.dumps(_qwen3(config), indent=2) + "\n")
    (folder / "tokenizer.json").write_text(json.dumps(_tokenizer(config)))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}\n')
    weights = folder / "model.safetensors"
    weights.unlink(missing_ok=True)
    os.link(artifact / "model" / "model.safetensors", weights)


def _qwen3(config: ModelConfig) -> dict[str, object]:
    """`config` in the words of transformers; no token begins or ends a text."""
    shape = {
        name: getattr(config, name)
        for name in (
            "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
            "num_key_value_heads", "head_dim", "rms_norm_eps", "rope_theta",
        )
    }  # fmt: skip
    return shape | {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "attention_bias": False,
        "bos_token_id": None,
        "eos_token_id": None,
        "hidden_act": "silu",
        "max_position_embeddings": 2048,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
        "tie_word_embeddings": False,
        "dtype": "float32",
    }


def _tokenizer(config: ModelConfig) -> dict[str, object]:
    """A word per token: `l2_17` is code 17 of level 2."""
    vocabulary = {
        f"l{level + 1}_{code}": config.code_offsets[level] + code
        for level, size in enumerate(config.codebook_sizes)
        for code in range(size)
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "l1_0"},
    }
