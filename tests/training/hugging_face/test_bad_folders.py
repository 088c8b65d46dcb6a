"""A folder that is no whole checkpoint of a recommender is refused by file, problem and limit, and nothing is left."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from cli.main import main

pytest.importorskip("transformers", reason="makes checkpoints with transformers where it is installed")

from tests.training.hugging_face.layouts import publish


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A good folder of MiniOneRec's layout, in shards."""
    folder = tmp_path_factory.mktemp("published")
    publish(folder, "minionerec")
    return folder


def edit(name: str, change: Callable[[dict], object]) -> Callable[[Path], object]:
    """Change what a JSON file of the folder holds."""

    def work(folder: Path) -> None:
        path = folder / name
        content = json.loads(path.read_text())
        change(content)
        path.write_text(json.dumps(content))

    return work


def config(**values: object) -> Callable[[Path], object]:
    return edit("checkpoint/config.json", lambda content: content.update(values))


def added(change: Callable[[list[dict]], object]) -> Callable[[Path], object]:
    return edit("checkpoint/tokenizer.json", lambda content: change(content["added_tokens"]))


def shard(folder: Path) -> Path:
    return sorted((folder / "checkpoint").glob("model-*.safetensors"))[1]


def without_shards(folder: Path) -> None:
    for path in (folder / "checkpoint").glob("model*"):
        path.unlink()


def weights(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], object]:
    """All tensors in one file, changed."""

    def work(folder: Path) -> None:
        tensors = {}
        for path in sorted((folder / "checkpoint").glob("model-*.safetensors")):
            tensors |= load_file(path)
        without_shards(folder)
        change(tensors)
        save_file(tensors, folder / "checkpoint/model.safetensors")

    return work


def turned_into(**types: torch.dtype) -> Callable[[Path], object]:
    return weights(lambda tensors: tensors.update(
        {name: tensors[name].to(kind) for name in tensors for part, kind in types.items() if part in name}
    ))  # fmt: skip


def of_pickles_alone(folder: Path) -> None:
    without_shards(folder)
    (folder / "checkpoint/pytorch_model.bin").write_bytes(b"\x80\x02}q\x00.")


def in_two_files(folder: Path) -> None:
    first = load_file(sorted((folder / "checkpoint").glob("model-*.safetensors"))[0])
    save_file({**load_file(shard(folder)), **first}, shard(folder))


def beyond_the_folder(folder: Path) -> None:
    shutil.move(shard(folder), folder / shard(folder).name)
    path = folder / "checkpoint/model.safetensors.index.json"
    path.write_text(path.read_text().replace("model-00002", "../model-00002"))


def another_of_that_number(content: dict) -> None:
    content["model"]["vocab"]["<a_1>"] = next(
        token["id"] for token in content["added_tokens"] if token["content"] == "<a_0>"
    )


def plain_words(content: dict) -> None:
    """Codes in the vocabulary, which the tokenizer's model never makes of a text."""
    content["model"]["vocab"] |= {token["content"]: token["id"] for token in content["added_tokens"]}
    content["added_tokens"] = []


def one_id_for_two(content: dict) -> None:
    plain_words(content)
    content["model"]["vocab"]["<a_3>"] = content["model"]["vocab"]["<a_0>"]


def swap_levels(content: dict) -> None:
    content[next(iter(content))].reverse()


CASES: dict[str, tuple[Callable[[Path], object], str]] = {
    "no model": (
        lambda folder: (folder / "checkpoint/config.json").unlink(),
        r"source: \S+checkpoint has no config\.json \(accepted: a Hugging Face folder",
    ),
    "a shard is missing": (
        lambda folder: shard(folder).unlink(),
        r"model\.safetensors\.index\.json: names the file model-00002-of-\d+\.safetensors, which is not there",
    ),
    "a shard is cut off": (
        lambda folder: shard(folder).write_bytes(shard(folder).read_bytes()[:-9]),
        r"model-00002-of-\d+\.safetensors: not a readable safetensors file",
    ),
    "no map of shards": (
        edit("checkpoint/model.safetensors.index.json", dict.clear),
        r"model\.safetensors\.index\.json: has no `weight_map`",
    ),
    "no weights": (without_shards, r"model\.safetensors: is missing; save_pretrained\(folder\) of transformers"),
    "pickles": (of_pickles_alone, r"model\.safetensors: is missing; .* pickles, as pytorch_model\.bin, are not read"),
    "a shard of another folder": (
        beyond_the_folder, r"index\.json: names the file '\.\./model-00002-of-\d+\.safetensors', which is not beside",
    ),
    "a tensor in two shards": (
        in_two_files, r"model-00002-of-\d+\.safetensors: has the tensor \S+, which another file of the model has too",
    ),
    "quantised": (turned_into(q_proj=torch.int8), r"safetensors: \S+q_proj\.weight is torch\.int8, not one of torch"),
    "in double": (turned_into(up_proj=torch.float64), r"up_proj\.weight is torch\.float64, not one of torch\.float32"),
    "no numbers": (
        weights(lambda tensors: tensors["model.norm.weight"].fill_(torch.nan)),
        r"model\.safetensors: model\.norm\.weight has NaN or infinite values",
    ),
    "another vocabulary size": (
        config(vocab_size=77), r"embed_tokens\.weight has shape \(\d+, 32\), .*config\.json has vocab_size 77",
    ),
    "tokens that the model has no row for": (
        added(lambda tokens: tokens.extend([{**tokens[-1], "id": tokens[-1]["id"] + n, "content": f"<c_{n + 30}>"}
                                            for n in range(1, 9)])),
        r"embed_tokens\.weight has \d+ rows; tokenizer\.json has a code or a text at \d+",
    ),
    "an ID that the tokenizer lacks": (
        added(lambda tokens: tokens.pop()), r"tokenizer\.json: lacks the token '<c_9>', of item '\d+' and \d+ more",
    ),
    "an ID left out": (
        added(lambda tokens: tokens.pop(-5)), r"tokenizer\.json: gives '<c_\d+>' the ID \d+, which collides or leaves",
    ),
    "a level that the tokenizer lacks": (
        added(lambda tokens: [token.update(content=token["content"].replace("<c_", "<x_")) for token in tokens]),
        r"tokenizer\.json: has no token <c_\{\}>, which level 3 of the semantic IDs needs",
    ),
    "IDs that collide": (
        edit("checkpoint/tokenizer.json", another_of_that_number),
        r"tokenizer\.json: gives '<a_0>' the ID \d+, which collides or leaves some out: it is \d+",
    ),
    "two codes of one ID": (
        edit("checkpoint/tokenizer.json", one_id_for_two),
        r"tokenizer\.json: gives the tokens '<a_[03]>' and '<a_[03]>' the one ID \d+",
    ),
    "no tokenizer": (
        lambda folder: (folder / "checkpoint/tokenizer.json").unlink(), r"tokenizer\.json: is missing; AutoTokenizer",
    ),
    "another architecture": (
        config(model_type="mamba"),
        r"config\.json, model_type: is 'mamba' \(accepted: decoders of qwen3, qwen2, llama\)",
    ),
    "an encoder and a decoder": (
        config(model_type="t5", is_encoder_decoder=True),
        r"model_type: is 't5', an encoder-decoder \(accepted: decoders",
    ),
    "other angles": (
        config(rope_parameters={"rope_type": "yarn"}), r"config\.json: .*rope_scaling: is of type 'yarn'",
    ),
    "angles by layer": (
        config(rope_parameters={"full_attention": {"rope_theta": 9.0}}),
        r"config\.json: .*rope_parameters: is \{'full_attention': .*\} \(accepted: one object for all layers\)",
    ),
    "angles of a half": (config(partial_rotary_factor=0.5), r"partial_rotary_factor: is 0\.5 \(accepted: 1\)"),
    "two angles": (config(rope_theta=77.0), r"rope_theta: is 77\.0 \(accepted: 5000\.0, as in rope_parameters\)"),
    "angles of no number": (
        config(rope_parameters=None, rope_theta=math.nan), r"rope_theta: is nan \(accepted: a number above 0",
    ),
    "a text for a number": (config(rms_norm_eps="1e-6"), r"rms_norm_eps: is '1e-6' \(accepted: a number above 0"),
    "layers by halves": (config(num_hidden_layers=2.0), r"num_hidden_layers: is 2\.0 \(accepted: a whole number, 1 or"),
    "layers without end": (
        config(num_hidden_layers=10**6), r"index\.json: has \d+ tensors, config\.json says num_hidden_layers 1000000",
    ),
    "a size beyond all": (config(hidden_size=2**62), r"hidden_size: is 46\d+ \(accepted: .* 1048576 at most\)"),
    "no heads": (config(num_attention_heads=0, head_dim=None), r"num_attention_heads: is 0 \(accepted: a whole number"),
    "an odd head": (config(head_dim=7), r"head_dim: is 7 \(accepted: an even number"),
    "windows in layers": (config(layer_types=["sliding_attention"] * 2), r"layer_types: is \['sliding_attention"),
    "said to be quantised": (config(quantization_config={"bits": 4}), r"quantization_config: is there \(accepted: wei"),
    "tied by a word": (config(tie_word_embeddings="no"), r"tie_word_embeddings: is 'no' \(accepted: true or false\)"),
    "places by halves": (config(max_position_embeddings=60.0), r"max_position_embeddings: is 60\.0 \(accepted: a who"),
    "no head": (
        config(tie_word_embeddings=False), r"lacks the tensor lm_head\.weight, and .*tie_word_embeddings false",
    ),
    "no head, and nothing said of one": (
        edit("checkpoint/config.json", lambda content: content.pop("tie_word_embeddings")),
        r"lacks the tensor lm_head\.weight, and .*config\.json does not say tie_word_embeddings true",
    ),
    "tied to another head": (
        weights(lambda tensors: tensors.update({"lm_head.weight": tensors["model.embed_tokens.weight"] + 1})),
        r"lm_head\.weight differs from model\.embed_tokens\.weight, and .*tie_word_embeddings true",
    ),
    "angles of two kinds": (
        config(rope_scaling={"rope_type": "yarn", "factor": 4.0}),
        r"rope_scaling: is \{'rope_type': 'yarn', .* \(accepted: .*, as in rope_parameters\)",
    ),
    "a layer too many": (config(num_hidden_layers=3), r"index\.json: lacks the tensor model\.layers\.2"),
    "no room for one item": (
        config(max_position_embeddings=20),
        r"config\.json, prompt: takes \d+ tokens for one item \(accepted: max_position_embeddings, 20\)",
    ),
    "no room for so many": (
        config(max_position_embeddings=60),
        r"max_history: is 9, a prompt of \d+ tokens \(accepted: 1 to \d: .*max_position_embeddings 60\)",
    ),
    "a prompt without a history": (
        edit("prompt.json", lambda content: content.update(text="what comes next?")),
        r"prompt\.json, text: has \{history\} not once",
    ),
    "a prompt with more": (
        edit("prompt.json", lambda content: content.update(suffix="!")),
        r"prompt\.json, suffix: is no field of a prompt",
    ),
    "a prompt that is no text": (
        edit("prompt.json", lambda content: content.update(text="\ud800{history}")),
        r"prompt\.json: is not a readable prompt: .*surrogates not allowed",
    ),
    "a title that is no text": (
        edit("x.item.json", lambda content: content.update({"7": {"title": "\ud800"}})),
        r"x\.item\.json, item '7': is no text: .*surrogates not allowed",
    ),
    "an artifact that is a link": (
        lambda folder: (folder / "artifact").symlink_to(folder / "checkpoint"), r"artifact: is there already",
    ),
    "codes that no text becomes": (
        edit("checkpoint/tokenizer.json", plain_words), r"prompt\.json: is cut into other tokens around some items",
    ),
    "levels in another order": (
        edit("x.index.json", swap_levels), r"x\.index\.json: item '\d+': '<a_\d+>' is not a token <c_\{\}>",
    ),
    "an item without a semantic ID": (
        edit("x.index.json", lambda content: content.popitem()), r"x\.index\.json: lacks 1 of 60 items",
    ),
    "items that are no items": (
        edit("x.item.json", lambda content: content.update({"7": "a title"})),
        r"x\.item\.json, item '7': is 'a title' \(accepted: JSON",
    ),
}  # fmt: skip


def command(folder: Path) -> list[str]:
    return [
        "import", str(folder / "checkpoint"), str(folder / "artifact"), "--items", str(folder / "x.item.json"),
        "--semantic-ids", str(folder / "x.index.json"), "--prompt", str(folder / "prompt.json"), "--max-history", "9",
    ]  # fmt: skip


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*"))


@pytest.mark.parametrize("case", CASES)
def test_what_is_wrong_is_named_and_nothing_is_left(case, whole, tmp_path, capsys):
    damage, said = CASES[case]
    folder = shutil.copytree(whole, tmp_path / "given")
    damage(folder)
    before = names(folder)
    assert main(command(folder)) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("genrec import: ")]
    assert re.search(said, line), line
    assert names(folder) == before


def test_a_good_folder_is_imported_once(whole, tmp_path, capsys):
    folder = shutil.copytree(whole, tmp_path / "given")
    assert main(command(folder)) == 0
    assert "60 items" in capsys.readouterr().out
    made = {path: path.stat().st_mtime_ns for path in (folder / "artifact").rglob("*")}
    assert main(command(folder)) == 2
    assert "artifact: is there already (accepted: the name of a new folder)" in capsys.readouterr().err
    assert {path: path.stat().st_mtime_ns for path in (folder / "artifact").rglob("*")} == made
