"""What a folder of others says, or leaves out, is taken as transformers takes it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from genrec.artifact import load_config
from genrec.errors import ArtifactError, InputError
from genrec.models.config import MODEL_TYPES, ModelConfig
from genrec.nn.checkpoint import load_generator
from training.hugging_face.checkpoint import import_checkpoint
from training.hugging_face.code_tokens import read_codes

pytest.importorskip("transformers", reason="makes checkpoints with transformers where it is installed")

from tests.training.hugging_face.layouts import publish


def test_one_file_counts_and_not_the_shards_beside_it(tmp_path: Path) -> None:
    published = publish(tmp_path, "codes")
    tensors = {}
    for path in sorted(published.checkpoint.glob("model-*.safetensors")):
        tensors |= load_file(path)
    other = {name: tensor + 1 for name, tensor in tensors.items()}
    save_file(other, published.checkpoint / "model.safetensors")
    import_checkpoint(published.checkpoint, tmp_path / "artifact", **published.options)
    found = load_generator(tmp_path / "artifact/model").state_dict()
    assert torch.equal(found["norm.weight"], other["model.norm.weight"])


def test_where_codes_lie_is_not_believed(tmp_path: Path) -> None:
    published = publish(tmp_path, "codes")
    path = published.checkpoint / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "code_offsets": [0, 0, 0]}))
    import_checkpoint(published.checkpoint, tmp_path / "artifact", **published.options)
    config = load_config(tmp_path / "artifact")
    first, second, _ = config.codebook_sizes
    assert config.code_offsets == (0, first, first + second)


def test_without_a_number_of_key_heads_there_are_as_many_as_heads(tmp_path: Path) -> None:
    said = {
        "model_type": "llama",
        "hidden_size": 64,
        "num_attention_heads": 8,
        "codebook_sizes": [3],
        "max_history": 1,
    }
    for more in ({}, {"num_key_value_heads": None}):
        config = ModelConfig.of(said | more, tmp_path)
        assert (config.num_key_value_heads, config.head_dim) == (8, 8)


def test_a_qwen3_without_a_size_of_heads_has_the_usual_one(tmp_path: Path) -> None:
    """For transformers it does not follow from other sizes, as it does of a Qwen2 and a Llama."""
    said = {"hidden_size": 64, "num_attention_heads": 8, "codebook_sizes": [3], "max_history": 1}
    for more in ({}, {"head_dim": None}):
        sizes = {
            kind: ModelConfig.of(said | more | {"model_type": kind}, tmp_path).head_dim
            for kind in MODEL_TYPES
        }
        assert sizes == {"qwen3": 128, "qwen2": 8, "llama": 8}


@pytest.mark.parametrize("kind", MODEL_TYPES)
@pytest.mark.parametrize("key", ["attention_bias", "mlp_bias"])
def test_biases_that_transformers_reads_and_an_import_does_not(kind: str, key: str, tmp_path: Path) -> None:
    """A Qwen2 has the ones it has whatever is said, and a Qwen3 none in its MLP."""
    said = {"model_type": kind, "head_dim": 8, "codebook_sizes": [3], "max_history": 1, key: True}
    if key in {"llama": ("attention_bias", "mlp_bias"), "qwen3": ("attention_bias",)}.get(kind, ()):
        with pytest.raises(
            ArtifactError, match=rf"{key}: is true \(accepted: false: biases are read of a qwen2"
        ):
            ModelConfig.of(said, tmp_path)
    else:
        ModelConfig.of(said, tmp_path)


def test_a_model_that_no_import_reads_is_told_before_all_else(tmp_path: Path) -> None:
    """Interactions may take minutes to read."""
    published = publish(tmp_path, "codes")
    path = published.checkpoint / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "rope_parameters": {"rope_type": "yarn"}}))
    published.options["items"].write_text("no items")
    with pytest.raises(ArtifactError, match=r"rope_scaling: is of type 'yarn' \(accepted: default\)"):
        import_checkpoint(published.checkpoint, tmp_path / "artifact", **published.options)


@pytest.mark.parametrize("built", ["Qwen2Model", "Qwen2ForSequenceClassification"])
def test_a_model_that_writes_no_text_is_told_by_its_class(built: str, tmp_path: Path) -> None:
    published = publish(tmp_path, "codes")
    path = published.checkpoint / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "architectures": [built]}))
    with pytest.raises(
        InputError, match=rf"config\.json, architectures: is {built} \(accepted: a model that writes"
    ):
        import_checkpoint(published.checkpoint, tmp_path / "artifact", **published.options)


@pytest.mark.parametrize("alone", [True, False])
def test_an_adapter_is_no_model(alone: bool, tmp_path: Path) -> None:
    """Beside a whole model it says nothing."""
    published = publish(tmp_path, "codes")
    (published.checkpoint / "adapter_config.json").write_text("{}")
    if not alone:
        import_checkpoint(published.checkpoint, tmp_path / "artifact", **published.options)
        return
    for path in (*published.checkpoint.glob("model*"), published.checkpoint / "config.json"):
        path.unlink()
    with pytest.raises(
        InputError, match=r"has an adapter alone, as LoRA's \(accepted: a whole model: merge_and"
    ):
        import_checkpoint(published.checkpoint, tmp_path / "artifact", **published.options)


def test_an_item_has_one_semantic_id(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("item,code_1,code_2\n7,<a_1>,<b_1>\n8,<a_1>,<b_2>\n7,<a_2>,<b_2>\n")
    with pytest.raises(InputError, match=r"x\.csv: line 4: item '7' is there twice"):
        read_codes(tmp_path / "x.csv", ["7", "8"])


def test_a_template_may_have_braces(tmp_path: Path) -> None:
    published = publish(tmp_path, "codes")
    for path in (published.checkpoint / "tokenizer.json", published.options["semantic_ids"]):
        path.write_text(path.read_text().replace("<a_", "<{a}_"))
    prompt = tmp_path / "prompt.json"
    prompt.write_text('{"text": "looked at {history}"}')
    import_checkpoint(published.checkpoint, tmp_path / "artifact", **published.options, prompt=prompt)
    assert load_config(tmp_path / "artifact").has_text
