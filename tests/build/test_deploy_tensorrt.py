"""The container's side of the tensorrt target: what holds without a container. Nothing here starts Docker."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from types import ModuleType

import pytest

from build.catalogue import remove_items
from deploy.command import command
from deploy.ports import Ports
from deploy.server_files import ServerFiles
from deploy.tensorrt import build_engines, launch, manifest, place
from deploy.tensorrt.manifest import Place
from ensembles.lint import lint
from genrec.catalogue import agreement
from genrec.catalogue.files import CATALOGUE
from genrec.catalogue.items import Catalogue
from genrec.catalogue.versions import Current, folder_of, point
from genrec.errors import ArtifactError
from genrec.models.config import ModelConfig
from tests.ensembles.lint_argv import lint_argv

ROOT = Path(__file__).resolve().parents[2]
HERE = Place("26.05", "10.15.1", "9.0", "a" * 64)


@pytest.fixture
def plans(tmp_path):
    folder = tmp_path / "tensorrt"
    folder.mkdir()
    for name in ("prefill", "decode_2", "decode_3", "prefill_draft"):
        (folder / f"{name}.plan").write_bytes(name.encode())
    manifest.write(folder, HERE, "f16")
    return folder


def test_plans_are_taken_where_they_were_built(plans):
    assert manifest.check(plans, HERE) == "f16"


@pytest.mark.parametrize("field", list(asdict(HERE)))
def test_plans_of_another_place_are_refused_by_name(plans, field):
    with pytest.raises(ArtifactError, match=field):
        manifest.check(plans, replace(HERE, **{field: "other"}))


def test_a_changed_plan_or_no_manifest_is_refused(plans):
    (plans / "prefill.plan").write_bytes(b"other")
    with pytest.raises(ArtifactError, match=r"prefill\.plan"):
        manifest.check(plans, HERE)
    (plans / manifest.NAME).write_text("{}")
    with pytest.raises(ArtifactError, match="not a manifest"):
        manifest.check(plans, HERE)


def test_a_build_that_fails_leaves_the_plans_that_were_there(tiny, plans, tmp_path, monkeypatch):
    artifact = shutil.copytree(tiny, tmp_path / "artifact")
    out = artifact / "engines" / "tensorrt"
    shutil.copytree(plans, out)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    monkeypatch.setitem(sys.modules, "tensorrt", ModuleType("tensorrt"))  # which the container alone has
    monkeypatch.setattr(place, "here", lambda: HERE)

    def plan(_trt, _model, _shapes, onnx_file):
        if onnx_file.stem == failing:
            raise ArtifactError(onnx_file, "TensorRT built no plan; its log says why")
        onnx_file.touch()
        return b"new"

    monkeypatch.setattr(build_engines, "build_plan", plan)
    failing = "decode_3"
    with pytest.raises(ArtifactError, match="built no plan"):
        build_engines.build(artifact, "f16", 16)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    failing = ""
    (out / "of_a_former_model.plan").touch()
    build_engines.build(artifact, "f16", 16)
    assert {path.name for path in out.iterdir()} == before.keys() and manifest.check(out, HERE) == "f16"
    assert (out / "decode_3.plan").read_bytes() == b"new" and not list(out.parent.glob("tensorrt.*"))


def test_versions_read_as_tensorrt_writes_them():
    assert [place.version_of(n) for n in (101302, 101501, 110000)] == ["10.13.2", "10.15.1", "11.0.0"]
    with pytest.raises(ArtifactError, match="no TensorRT container"):
        place.tensorrt_version("libnvinfer.so.none")


def test_the_command_line_is_clean_and_loads_the_plugin():
    files = ServerFiles(*[Path("/opt/tritonserver/x")] * 4)
    argv = command(files, Path("/r"), Path("/b"), Ports(1, 2, 3), "t" * 32, "genrec-1-")
    mine = launch.arguments_for_gpu(argv, place.PLUGIN, launch.MemoryPools(5 << 30, 1 << 28))
    assert lint_argv(mine) == []
    assert f"--backend-config=tensorrt,plugins={place.PLUGIN}" in mine
    assert [a for a in mine if "pool-byte-size" in a] == [
        "--cuda-memory-pool-byte-size=0:5368709120",
        "--pinned-memory-pool-byte-size=268435456",
    ]


def test_the_memory_between_models_holds_two_of_the_largest_batches():
    """Qwen3-1.7B at S = 5,000: 112 KiB a token, so 4.6 GB of prompts' KV in a batch of eight."""
    config = ModelConfig((256, 8192, 256), 1666, num_hidden_layers=28, num_attention_heads=16,
                         num_key_value_heads=8, head_dim=128)  # fmt: skip
    token = 28 * 2 * 8 * 128 * 2
    assert config.max_prompt == 4998 and 4.5e9 < 8 * 4998 * token < 4.6e9
    logits = 8 * 1024 * 8192 * 4
    unshared = 8 * 1024 * token * 2  # one token of a beam is kept, by this level and by the one before
    pools = launch.memory_pools(config, "f16", 1024)
    assert pools == (2 * (8 * 4998 * token + unshared + logits), 2 * logits)
    assert launch.memory_pools(config, "f16", 8).pinned == 256 << 20
    assert launch.memory_pools(config, "f32", 1024).gpu - 2 * logits == 2 * (pools.gpu - 2 * logits)


def test_an_artifact_is_laid_out_once_its_engines_are_good(tiny, plans, tmp_path):
    artifact = shutil.copytree(tiny, tmp_path / "artifact")
    with pytest.raises(ArtifactError, match=r"engines\.json"):
        launch.prepare(artifact, tmp_path, HERE, 16)
    shutil.copytree(plans, artifact / "engines" / "tensorrt")
    models, pools = launch.prepare(artifact, tmp_path, HERE, 16)
    assert lint(models) == [] and pools.gpu > 0
    assert (models / "decode_3" / "1" / "model.plan").read_bytes() == b"decode_3"


def test_a_launch_begins_with_the_version_before_a_damaged_one(tiny, plans, tmp_path, monkeypatch):
    artifact = shutil.copytree(tiny, tmp_path / "artifact")
    shutil.copytree(plans, artifact / "engines" / "tensorrt")
    version = remove_items(artifact, Catalogue.load(artifact / CATALOGUE, titles=False).item_ids[:1])
    point(artifact, Current().to(version))
    (folder_of(artifact, version) / CATALOGUE).write_bytes(b"damaged")
    became: list[dict[str, str]] = []
    monkeypatch.setattr(place, "here", lambda: HERE)
    monkeypatch.setattr(os, "execve", lambda _program, _argv, environment: became.append(environment))
    monkeypatch.setattr(sys, "argv", ["launch", str(artifact)])
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    launch.main()
    folder = Path(became[0]["GENREC_SWAP"])
    try:
        assert agreement.start_with(folder) == (1, ())
    finally:
        shutil.rmtree(folder)


def test_plans_from_before_there_was_a_ranker_are_refused(tiny_ranker, plans, tmp_path):
    artifact = shutil.copytree(tiny_ranker, tmp_path / "artifact")
    shutil.copytree(plans, artifact / "engines" / "tensorrt")
    with pytest.raises(ArtifactError, match=r"score_candidates\.plan.*is missing; build the engines again"):
        launch.prepare(artifact, tmp_path, HERE, 16)


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        (
            "deploy.tensorrt.build_engines",
            ["torch", "numba", "openvino", "pyarrow", "tritonclient", "onnxruntime", "tqdm"],
        ),
        ("deploy.tensorrt.launch", ["torch", "openvino", "onnx", "onnxruntime", "pytriton", "tqdm"]),
        ("genrec.steps.beam_search_of_logits", ["torch", "openvino", "onnx", "onnxruntime", "tqdm"]),
        ("perf.gpu.run", ["numba", "openvino", "onnx", "pyarrow", "tritonclient", "onnxruntime", "tqdm"]),
    ],
)
def test_modules_import_with_what_their_image_has(module, absent):
    code = f"import sys; sys.modules.update(dict.fromkeys({absent})); import {module}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr


def test_the_dockerfile_copies_what_exists_and_pins_one_tag():
    text = (ROOT / "deploy" / "Dockerfile").read_text()
    sources = re.findall(r"^COPY (?!--from)(\S+) ", text, re.M)
    assert sources and all((ROOT / source).exists() for source in sources)
    assert set(re.findall(r"^FROM \S+:(\S+)", text, re.M)) == {"${TAG}-py3"}
    year, month = map(int, re.search(r"ARG TAG=(\d+)\.(\d+)", text).groups())
    assert (year, month) >= (25, 8)
    pins = (ROOT / "pyproject.toml").read_text()
    for name, version in re.findall(r"([a-z]+)==([\d.]+)", text):
        assert f"{name}=={version}" in pins, f"{name} is pinned otherwise in pyproject.toml"


def test_the_script_is_bash_and_says_that_it_was_not_run():
    script = ROOT / "deploy" / "verify_tensorrt.sh"
    subprocess.run(["bash", "-n", str(script)], check=True)
    assert "NOT RUN" in script.read_text() and script.stat().st_mode & 0o100
