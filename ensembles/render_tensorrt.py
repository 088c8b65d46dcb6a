"""Write the tensorrt target's configurations: committed ones for one model, or a whole repository for an artifact.

    python -m ensembles.render_tensorrt [--config config.json] [--out model_repository]

Committed are `<model>/configs/tensorrt.pbtxt`, and `decode/configs/tensorrt_<level>.pbtxt` because a level's plan is
a model of its own; they are for the shape below. `repository` lays out what Triton loads, for an artifact's shape:
KV edges are a model's, so `--model-config-name` over one folder for all cannot be the way.
"""

from __future__ import annotations

import argparse
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig as TritonConfig
from tritonclient.grpc.model_config_pb2 import ModelInstanceGroup

from ensembles.description import Ensemble, Model
from ensembles.render import ensemble_config, model_config, write_warmup_values
from ensembles.tensorrt import Plan
from ensembles.tensorrt_rank import served_tensorrt
from genrec.models.config import ModelConfig
from genrec.rank.options import RankerConfig

SOURCES = "ensembles/tensorrt.py and tensorrt_rank.py"
HEADER = f"# rendered by ensembles/render_tensorrt.py from {SOURCES}; edit those, not this\n"
COMMITTED = ModelConfig(
    (256, 64, 16), max_history=50, hidden_size=64, num_hidden_layers=2, num_attention_heads=2,
    num_key_value_heads=2, head_dim=32, intermediate_size=128,
)  # fmt: skip


def plan_config(plan: Plan) -> TritonConfig:
    """Triton's configuration of a plan: on a GPU, batches of requests whose shapes are equal."""
    config = model_config(plan)
    config.backend, config.platform = "tensorrt", "tensorrt_plan"
    for tensor in config.input:
        tensor.allow_ragged_batch = False
    del config.instance_group[:]
    config.instance_group.add(kind=ModelInstanceGroup.KIND_GPU, count=plan.instances)
    return config


def configs(ensembles: Sequence[Ensemble]) -> list[TritonConfig]:
    """Of every model, once, and of the ensembles."""
    models = [plan_config(m) if isinstance(m, Plan) else model_config(m) for m in _models(ensembles)]
    return [*models, *(ensemble_config(ensemble) for ensemble in ensembles)]


def _models(ensembles: Sequence[Ensemble]) -> list[Model]:
    """What several ensembles use stands once; `recommend_draft` shares both its ends with `recommend`."""
    return list({model.name: model for ensemble in ensembles for model in ensemble.models}.values())


def render(ensembles: Sequence[Ensemble], out: Path) -> list[Path]:
    """Write the committed files; returns them."""
    written = []
    for config in configs(ensembles):
        level = re.fullmatch(r"(decode)_(\d+)", config.name)
        folder, name = (level[1], f"tensorrt_{level[2]}") if level else (config.name, "tensorrt")
        path = out / folder / "configs" / f"{name}.pbtxt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(HEADER + text_format.MessageToString(config))
        written.append(path)
    return written


def repository(ensembles: Sequence[Ensemble], plans: Path, python_models: Path, out: Path) -> None:
    """Lay out a repository: `plans`/<name>.plan, and the Python models of `python_models` (model_repository)."""
    for config in configs(ensembles):
        version = out / config.name / "1"
        version.mkdir(parents=True)
        (version.parent / "config.pbtxt").write_text(HEADER + text_format.MessageToString(config))
        if config.backend == "tensorrt":
            shutil.copy(plans / f"{config.name}.plan", version / "model.plan")
        elif config.backend == "python":
            shutil.copy(python_models / config.name / "1" / "model.py", version)
    for model in _models(ensembles):
        write_warmup_values(model, out / model.name / "warmup")


def main() -> None:
    """Command line of the renderer."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", type=Path, help="a model's config.json (default: the committed shape)")
    parser.add_argument("--kv-type", default="f16", choices=("f32", "f16", "bf16"), help="type of the plans")
    parser.add_argument(
        "--out", type=Path, default=Path("model_repository"), help="model repository to write"
    )
    arguments = parser.parse_args()
    config = ModelConfig.load(arguments.config) if arguments.config else COMMITTED
    ensembles = served_tensorrt(
        config, arguments.kv_type, config.levels, RankerConfig(item_tokens=config.levels)
    )
    for path in render(ensembles, arguments.out):
        print(path)


if __name__ == "__main__":
    main()
