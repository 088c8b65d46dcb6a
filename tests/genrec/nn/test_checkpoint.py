"""Checkpoints: Hugging Face's own decoders give the same numbers from the same files; broken files are refused."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from genrec.errors import ArtifactError
from genrec.models.config import ModelConfig
from genrec.nn.checkpoint import load_generator, save_generator
from genrec.nn.model import Generator

CLASSES = {"qwen3": "Qwen3ForCausalLM", "qwen2": "Qwen2ForCausalLM", "llama": "LlamaForCausalLM"}


@pytest.fixture
def saved(tmp_path):
    config = ModelConfig((6, 5), 4, hidden_size=16, num_attention_heads=2, num_key_value_heads=1, head_dim=8)
    generator = Generator(config).eval()
    save_generator(generator, tmp_path / "model")
    return generator, tmp_path / "model"


def test_what_is_saved_loads_again(saved):
    generator, folder = saved
    again = load_generator(folder)
    assert again.config == generator.config
    for (name, tensor), other in zip(
        generator.state_dict().items(), again.state_dict().values(), strict=True
    ):
        assert torch.equal(tensor, other), name


@pytest.mark.parametrize("model_type", CLASSES)
def test_hugging_face_checkpoints_give_the_same_logits(model_type, tmp_path):
    """In bf16 and in shards, as they are published; a vocabulary larger than the codes, which sit at offsets."""
    transformers = pytest.importorskip(
        "transformers", reason="compares with transformers where it is installed"
    )
    torch.manual_seed(0)
    shape = {
        "vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 48, "head_dim": 8, "tie_word_embeddings": model_type == "qwen2",
        "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0},
    }  # fmt: skip
    theirs = getattr(transformers, CLASSES[model_type])(
        transformers.AutoConfig.for_model(model_type, **shape)
    ).eval()
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    theirs.to(torch.bfloat16).save_pretrained(tmp_path, max_shard_size="8KB")
    theirs = type(theirs).from_pretrained(tmp_path, dtype=torch.float32)
    config = json.loads((tmp_path / "config.json").read_text())
    config |= {"codebook_sizes": [7, 9], "code_offsets": [3, 20], "max_history": 8, "model_type": model_type}
    (tmp_path / "config.json").write_text(json.dumps(config))
    ours = load_generator(tmp_path)
    tokens = torch.randint(0, 50, (2, 11))
    with torch.no_grad():
        want = theirs(tokens).logits
        hidden, _ = ours.prefill(tokens)
        assert torch.allclose(ours.head(hidden, 1), want[..., 3:10], atol=1e-4)
        assert torch.allclose(ours.head(hidden, 2), want[..., 20:29], atol=1e-4)


def test_broken_checkpoints_are_refused_by_name(saved):
    _, folder = saved
    file = folder / "model.safetensors"
    whole = file.read_bytes()
    for content in (whole[:-7], b"", b"\xff" * 64):
        file.write_bytes(content)
        with pytest.raises(ArtifactError, match=r"model\.safetensors: not a readable safetensors file"):
            load_generator(folder)
    file.write_bytes(whole)
    tensors = load_file(file)
    for change, problem in (
        ({"model.norm.weight": torch.ones(3)}, "has shape"),
        ({"more": torch.ones(1)}, "more"),
    ):
        save_file(tensors | change, file)
        with pytest.raises(ArtifactError, match=problem):
            load_generator(folder)
    shutil.copy(folder / "config.json", folder / "kept")
    scaled = json.dumps(json.loads((folder / "kept").read_text()) | {"rope_scaling": {"rope_type": "llama3"}})
    for text in (
        "{",
        "[]",
        json.dumps({"codebook_sizes": [], "max_history": 1}),
        json.dumps({"max_history": 3}),
        scaled,
    ):
        (folder / "config.json").write_text(text)
        with pytest.raises(ArtifactError, match=r"config\.json"):
            load_generator(folder)
    shutil.copy(folder / "kept", folder / "config.json")
    file.unlink()
    with pytest.raises(ArtifactError, match=r"model\.safetensors: cannot be read: No such file"):
        load_generator(folder)
