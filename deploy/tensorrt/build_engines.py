"""Init step: an artifact's ONNX to TensorRT plans on this GPU. NOT RUN YET: it needs the container and a GPU.

    python3 -m deploy.tensorrt.build_engines /artifact [--kv-type f16] [--beam-width 256]

Runs in the image `engines` of deploy/Dockerfile, whose tag is the server's; writes `engines/tensorrt/`.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import onnx

from build.tensorrt.graphs import plan_graph, plan_names, plugin_layers
from build.tensorrt.profiles import profile
from build.tensorrt.ranker import SERVED, item_tokens, plan_ranker
from deploy.tensorrt import manifest, place
from genrec.artifact import load_config
from genrec.errors import ArtifactError
from genrec.files import made_aside
from genrec.rank.head import has_ranker


def build_plan(
    trt: Any, model: onnx.ModelProto, shapes: dict[str, list[list[int]]], onnx_file: Path
) -> bytes:
    """A plan's graph to the plan, for the `shapes` of its profile.

    Raises ArtifactError, also when an attention node did not become a plugin layer.
    """
    onnx.save(model, str(onnx_file))
    logger = trt.Logger(trt.Logger.INFO)
    builder = trt.Builder(logger)
    flags = trt.NetworkDefinitionCreationFlag
    # Strong typing is all there is from TensorRT 11 on, and its flag goes.
    network = builder.create_network(
        1 << int(flags.STRONGLY_TYPED) if hasattr(flags, "STRONGLY_TYPED") else 0
    )
    parser = trt.OnnxParser(network, logger)
    if hasattr(trt.OnnxParserFlag, "ENABLE_PLUGIN_OVERRIDE"):  # 10.15 and later; before, plugins win anyway
        parser.set_flag(trt.OnnxParserFlag.ENABLE_PLUGIN_OVERRIDE)
    if not parser.parse_from_file(str(onnx_file)):
        raise ArtifactError(onnx_file, "; ".join(str(parser.get_error(n)) for n in range(parser.num_errors)))
    made = [network.get_layer(n).type for n in range(network.num_layers)].count(trt.LayerType.PLUGIN_V3)
    wanted = plugin_layers(model)
    if made != wanted:
        raise ArtifactError(onnx_file, f"has {wanted} attention nodes, TensorRT made {made} plugin layers")
    settings = builder.create_builder_config()
    # One plan for H100 and H200: same capability. The plugin's splits are those of the builder's multiprocessors.
    settings.hardware_compatibility_level = trt.HardwareCompatibilityLevel.SAME_COMPUTE_CAPABILITY
    range_of = builder.create_optimization_profile()
    for name, sizes in shapes.items():
        range_of.set_shape(name, *sizes)
    settings.add_optimization_profile(range_of)
    plan = builder.build_serialized_network(network, settings)
    if plan is None:
        raise ArtifactError(onnx_file, "TensorRT built no plan; its log says why")
    return bytes(plan)


def build(artifact: Path, kv_type: str, beam_width: int) -> Path:
    """All plans of an artifact and their manifest; the folder, which stays as it was where a plan fails."""
    import tensorrt as trt

    where = place.here()
    config = load_config(artifact, "tensorrt")
    out = artifact / "engines" / "tensorrt"
    if has_ranker(artifact) and not plan_ranker(artifact):
        print(f"no plan ranks: plans run a ranker {SERVED}")
    with made_aside(out) as new:
        for name in plan_names(artifact, config):
            model = plan_graph(artifact, name, kv_type, config)
            shapes, scratch = profile(model, config, beam_width, item_tokens(artifact)), new / f"{name}.onnx"
            (new / f"{name}.plan").write_bytes(build_plan(trt, model, shapes, scratch))
            scratch.unlink()
            print(f"tensorrt {where.tensorrt}: {name}", flush=True)
        manifest.write(new, where, kv_type)
    return out


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("artifact", type=Path)
    parser.add_argument("--kv-type", default="f16", choices=("f32", "f16", "bf16"))
    parser.add_argument("--beam-width", type=int, default=256, help="the beam width to tune for")
    arguments = parser.parse_args()
    print(build(arguments.artifact, arguments.kv_type, arguments.beam_width))


if __name__ == "__main__":
    main()
