"""The slow, obvious engine: keeps tokens where others keep KV and runs the whole path again at every step."""

from __future__ import annotations

import json
from itertools import accumulate
from pathlib import Path

import numpy as np
import torch

from build.validity import build_validity
from genrec.draft.options import FILE_NAME as DRAFT_HEAD
from genrec.models.config import ModelConfig
from genrec.nn.checkpoint import load_generator, save_generator
from genrec.nn.draft_checkpoint import load_draft, save_draft, save_serving
from genrec.nn.model import Generator
from genrec.target import TARGETS, Target
from tests.oracles.draft_twin import plain_states
from tests.tiny import random_head, tiny_catalogue


class TwinPasses:
    """Shared KV holds, in the first number of each place, its token. Unshared KV of level u holds, in its first number,
    the beam's code of level u + 1: reordering moves it too. What it lends is spoilt as soon as that ends.
    """

    def __init__(self, folder, kv_type, threads, streams):
        self.model = folder.parent.parent / "model"
        self.generator = load_generator(self.model)
        self.lent = {}

    def _lend(self, name, like):
        for each in self.lent.get(name, ()):
            each[:] = np.nan
        self.lent[name] = [np.zeros_like(each) for each in like]
        return self.lent[name]

    @torch.no_grad()
    def prefill(self, tokens, lengths, logits, kv, lends=False):
        if lends:
            kv = self._lend("prefill", kv)
        for row, (line, length) in enumerate(zip(tokens, lengths, strict=True)):
            kv[0][row, 0, : len(line), 0] = line
            logits[row] = self._first(line[:length])
        return kv

    def _first(self, line):
        hidden, _ = self.generator.prefill(torch.from_numpy(line[None]))
        return self.generator.head(hidden[:, -1], 1).numpy()

    resumes = resumes_drafts = True

    @torch.no_grad()
    def resume(self, tokens, past, logits, new):
        before = past.kv[0][0, 0, : past.tokens, 0].astype(np.int64)
        logits[0] = self._first(np.concatenate((before, tokens[0])))
        new[0][0, 0, :, 0] = tokens[0]

    def draft_behind(self, tokens, past, states, new):
        before = past.kv[0][0, 0, : past.tokens, 0].astype(np.int64)
        states[0] = self.draft_states(
            np.concatenate((before, tokens[0]))[None],
            [past.tokens + (tokens < self.generator.config.vocab_size).sum()],
        )[0]
        new[0][0, 0, :, 0] = tokens[0]

    @torch.no_grad()
    def decode(self, given):
        offsets, written, kept = self.generator.config.code_offsets, given.level - 2, given.unshared[0]
        (logits,) = self._lend(given.level, [given.logits]) if given.lends else [given.logits]
        for row, length in enumerate(given.lengths):
            prompt = given.shared[0][row, 0, :length, 0].astype(np.int64)
            earlier = [kept[u][row, :, 0, 0].astype(np.int64) + offsets[u] for u in range(written)]
            newest = given.codes[row] + offsets[written]
            beams = (np.tile(prompt, (given.codes.shape[1], 1)), *earlier, newest)
            hidden, _ = self.generator.prefill(torch.from_numpy(np.column_stack(beams)))
            logits[row] = self.generator.head(hidden[:, -1], given.level).numpy()
        if len(kept) > written:
            kept[written][:, :, 0, 0] = given.codes
        return logits

    decodes_all = True

    @torch.no_grad()
    def decode_all(self, given):
        offsets = self.generator.config.code_offsets
        prompt = given.shared[0][0, 0, : given.length[0], 0].astype(np.int64)
        paths = [given.codes[0][0, :, None] + offsets[0]]
        for codes, parents, offset in zip(given.codes[1:], given.parents, offsets[1:], strict=False):
            paths.append(np.column_stack((paths[-1][parents], codes[0] + offset)))
        like = [
            np.zeros((1, len(beams), size), np.float32)
            for beams, size in zip(paths, self.generator.config.codebook_sizes[1:], strict=True)
        ]
        found = self._lend("all", like)
        for level, (beams, logits) in enumerate(zip(paths, found, strict=True), 2):
            whole = np.column_stack((np.tile(prompt, (len(beams), 1)), beams))
            hidden, _ = self.generator.prefill(torch.from_numpy(whole))
            logits[0] = self.generator.head(hidden[:, -1], level).numpy()
        return found

    def draft_states(self, tokens, lengths):
        head = load_draft(self.model)
        reach = 1 + head.config.levels
        return np.stack(
            [
                plain_states(self.generator, head, line[:length].tolist()).astype(np.float32)
                for line, length in zip(tokens, lengths, strict=True)
                if (line[length : length + reach - 1] >= head.config.vocab_size).all()
            ]
        )


def load_passes(folder, kv_type, threads, streams):
    """What an engine module of a target offers."""
    return [TwinPasses(folder, kv_type, threads, streams)]


TARGETS["twin"] = Target("twin", "torch", builder="", engine="tests.oracles.twin", streams=False)


def twin_artifact(folder: Path, sizes: tuple[int, ...], items: int) -> Path:
    """An artifact of any L that only the target `twin` can run: nothing to export, so it is made at once."""
    (folder / "engines" / "twin").mkdir(parents=True)
    (folder / "engines" / "twin" / "engine.json").write_text(json.dumps({"kv_type": "f32"}))
    tiny_catalogue(items, sizes).save(folder / "catalogue.parquet")
    torch.manual_seed(0)
    config = ModelConfig(sizes, max_history=8, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
                         num_key_value_heads=1, head_dim=8, intermediate_size=16)  # fmt: skip
    generator = Generator(config)
    with torch.no_grad():
        generator.lm_head.weight.normal_(std=0.7)
    save_generator(generator, folder / "model")
    head = random_head(config)
    save_draft(head, folder / "model")
    (folder / "onnx").mkdir()
    save_serving(generator, head, folder / "onnx" / DRAFT_HEAD)
    build_validity(folder)
    return folder


def spelled_out(config: ModelConfig, items: list[list[int]]) -> list[int]:
    """A prompt, token by token."""
    prompt = [*config.prompt_before]
    for number, item in enumerate(items):
        prompt += [*config.prompt_between, *item] if number else item
    return [*prompt, *config.prompt_after]


@torch.no_grad()
def score_every_item(generator: Generator, catalogue, history, excluded=frozenset()) -> dict[int, float]:
    """Log-probability of every item that is not excluded, renormalised at every level over the whole catalogue by plain
    enumeration, float64.

    `history` and `excluded` are catalogue rows. The whole prompt runs again for every path.
    """
    config = generator.config
    offsets = [0, *accumulate(config.codebook_sizes)]
    items = [[int(c) + offsets[n] for n, c in enumerate(catalogue.codes[row])] for row in history]
    prompt = spelled_out(config, items)
    every = {tuple(int(c) for c in codes) for codes in catalogue.codes}
    scores = {(): 0.0}
    for level in range(1, config.levels + 1):
        longer = {}
        for path, score in scores.items():
            tokens = torch.tensor([prompt + [c + offsets[n] for n, c in enumerate(path)]])
            logits = generator.head(generator.prefill(tokens)[0][0, -1], level).double().numpy()
            children = sorted({sid[level - 1] for sid in every if sid[: level - 1] == path})
            total = np.logaddexp.reduce(logits[children])
            longer.update({(*path, c): score + logits[c] - total for c in children})
        scores = longer
    rows = (row for row in range(len(catalogue)) if row not in excluded)
    return {int(catalogue.item_ids[row]): scores[tuple(int(c) for c in catalogue.codes[row])] for row in rows}
