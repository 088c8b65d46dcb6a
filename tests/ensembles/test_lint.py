"""Our repository and command line are clean; each hazard, put in by hand, is found and named."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import TYPE_STRING, ModelConfig

from deploy.command import command
from deploy.ports import Ports
from deploy.server_files import ServerFiles
from ensembles.lint import lint
from tests.ensembles.lint_argv import lint_argv

REPOSITORY = Path(__file__).resolve().parents[2] / "model_repository"
NOWHERE = Path("/nowhere")
ARGV = command(
    ServerFiles(NOWHERE, NOWHERE, NOWHERE, NOWHERE), NOWHERE, NOWHERE, Ports(1, 2, 3), "t" * 32, "p-"
)


def _policy(config: ModelConfig) -> None:
    config.dynamic_batching.default_queue_policy.default_timeout_microseconds = 1000


def _priorities(config: ModelConfig) -> None:
    config.dynamic_batching.priority_levels = 2


def _cache(config: ModelConfig) -> None:
    config.response_cache.enable = True


def _bytes(config: ModelConfig) -> None:
    config.input[0].data_type = TYPE_STRING


def _preferred(config: ModelConfig) -> None:
    config.dynamic_batching.preferred_batch_size.append(8)


def _no_batch(config: ModelConfig) -> None:
    config.max_batch_size = 0


def _no_batching(config: ModelConfig) -> None:
    config.ClearField("dynamic_batching")


def _not_ragged(config: ModelConfig) -> None:
    config.input[0].allow_ragged_batch = False


def _warm_ensemble(config: ModelConfig) -> None:
    config.model_warmup.add(name="w", batch_size=1)


def _cold(config: ModelConfig) -> None:
    config.ClearField("model_warmup")


def _decoupled(config: ModelConfig) -> None:
    config.model_transaction_policy.decoupled = True


def _too_many(config: ModelConfig) -> None:
    config.instance_group[0].count = 17


def _no_instances(config: ModelConfig) -> None:
    config.ClearField("instance_group")


def _misnamed(config: ModelConfig) -> None:
    config.name = "other"


@pytest.mark.parametrize(
    ("model", "mutate", "rule"),
    [
        ("prefill", _policy, "H1"),
        ("prefill", _priorities, "H1"),
        ("prefill", _cache, "H6"),
        ("recommend", _cache, "H6"),
        ("encode_history", _bytes, "H8"),
        ("prefill", _preferred, "batching"),
        ("recommend", _no_batch, "batching"),
        ("beam_search", _no_batching, "batching"),
        ("prefill", _not_ragged, "ragged"),
        ("recommend", _warm_ensemble, "warmup"),
        ("decode", _cold, "warmup"),
        ("decode", _decoupled, "decoupled"),
        ("decode", _no_instances, "instances"),
        ("encode_history", _too_many, "instances"),
        ("decode", _misnamed, "name"),
    ],
)
def test_a_broken_config_is_found(
    tmp_path: Path, model: str, mutate: Callable[[ModelConfig], None], rule: str
) -> None:
    repository = shutil.copytree(REPOSITORY, tmp_path / "repository")
    path = repository / model / "config.pbtxt"
    config = text_format.Parse(path.read_text(), ModelConfig())
    mutate(config)
    path.write_text(text_format.MessageToString(config))
    messages = lint(repository)
    assert len(messages) == 1
    assert messages[0].startswith(f"{rule}: {model}/config.pbtxt")


def test_our_repository_is_clean() -> None:
    assert lint(REPOSITORY) == []


def test_an_empty_folder_is_not_clean(tmp_path: Path) -> None:
    assert lint(tmp_path)


def test_queue_policy_without_delay_is_allowed(tmp_path: Path) -> None:
    repository = shutil.copytree(REPOSITORY, tmp_path / "repository")
    path = repository / "beam_search" / "config.pbtxt"
    path.write_text(path.read_text() + "dynamic_batching { priority_levels: 2 }\n")
    assert [m for m in lint(repository) if m.startswith("H1")] == []


def test_queue_limit_on_a_parallel_branch(tmp_path: Path) -> None:
    """H4: a diamond is caught, the same limit in a chain is not, however far apart its steps are."""
    limit = "dynamic_batching { default_queue_policy { max_queue_size: 4 } }"
    _write(tmp_path, "left", limit)
    _write(tmp_path, "right", "dynamic_batching {}")
    chain = _step("left", "x", "y") + _step("right", "y", "z") + _step("right", "z", "last")
    _write_ensemble(tmp_path, chain)
    assert [m for m in lint(tmp_path) if m.startswith("H4")] == []
    _write_ensemble(tmp_path, _step("left", "x", "y") + _step("right", "x", "z"))
    found = [m for m in lint(tmp_path) if m.startswith("H4")]
    assert len(found) == 1
    assert "left" in found[0]


def _write(folder: Path, name: str, extra: str) -> None:
    (folder / name).mkdir()
    (folder / name / "config.pbtxt").write_text(f'name: "{name}" backend: "python" max_batch_size: 8 {extra}')


def _step(model: str, reads: str, makes: str) -> str:
    maps = f'input_map {{ key: "i" value: "{reads}" }} output_map {{ key: "o" value: "{makes}" }}'
    return f'step {{ model_name: "{model}" model_version: -1 {maps} }} '


def _write_ensemble(folder: Path, steps: str) -> None:
    (folder / "both").mkdir(exist_ok=True)
    text = f'name: "both" platform: "ensemble" max_batch_size: 8 ensemble_scheduling {{ {steps} }}'
    (folder / "both" / "config.pbtxt").write_text(text)


def test_fields_of_later_releases_are_found(tmp_path: Path) -> None:
    """H5: max_inflight_requests is of 25.11; this release refuses to load it."""
    _write(tmp_path, "m", "ensemble_scheduling { max_inflight_requests: 4 }")
    assert any(m.startswith("H5: m/config.pbtxt") for m in lint(tmp_path))


def test_calls_between_models_are_found(tmp_path: Path) -> None:
    repository = shutil.copytree(REPOSITORY, tmp_path / "repository")
    source = repository / "decode" / "1" / "model.py"
    source.write_text("import triton_python_backend_utils as pb\npb.InferenceRequest(model_name='x')\n")
    assert [m.split(":")[0] for m in lint(repository)] == ["H11"]


def test_our_command_line_is_clean() -> None:
    assert lint_argv(ARGV) == []


@pytest.mark.parametrize(
    ("flag", "value", "rule"),
    [
        ("--metrics-config", None, "H7"),
        ("--http-address", None, "H9"),
        ("--grpc-address", "0.0.0.0", "H9"),
        ("--metrics-address", "192.168.0.1", "H9"),
        ("--model-control-mode", "poll", "H9"),
        ("--http-restricted-api", None, "H10"),
        ("--grpc-restricted-protocol", "shared-memory:genrec-token=short", "H10"),
        ("--cache-config", "local,size=1048576", "H6"),
        ("--disable-auto-complete-config", None, "start"),
        ("--exit-on-error", "false", "start"),
    ],
)
def test_a_broken_command_line_is_found(flag: str, value: str | None, rule: str) -> None:
    argv = [argument for argument in ARGV if argument.partition("=")[0] != flag]
    argv += [f"{flag}={value}"] if value else []
    assert [message.split(":")[0] for message in lint_argv(argv)] == [rule]


def test_who_may_load_models_must_not_be_a_client() -> None:
    """A supervisor may, with a secret of its own; the token that people are given may not."""
    files, ports = ServerFiles(*[Path("/x")] * 4), Ports(1, 2, 3)
    args = (files, Path("/r"), Path("/b"), ports, "t" * 32, "genrec-1-")
    assert lint_argv(command(*args, control="c" * 32)) == []
    shared = [
        a.replace("genrec-control=" + "c" * 32, "genrec-token=" + "t" * 32)
        for a in command(*args, control="c" * 32)
    ]
    assert {message.split(":")[0] for message in lint_argv(shared)} == {"H9"}


def test_every_hazard_has_a_place() -> None:
    """H1 to H11 are linted, but for what docs/upkeep.md says of deadlines (H2) and of the launcher (H3)."""
    files = (REPOSITORY.parent / "ensembles" / "lint.py", Path(__file__).with_name("lint_argv.py"))
    sources = "".join(each.read_text() for each in files)
    assert [n for n in range(1, 12) if f"H{n}: " not in sources] == [2, 3]
