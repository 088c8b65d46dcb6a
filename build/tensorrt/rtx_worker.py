"""One process: ONNX to a TensorRT for RTX plan, without a GPU. Started by `build.tensorrt.rtx`; needs only `rtx`.

    python rtx_worker.py '{"onnx": ..., "plan": ..., "profile": {...}, "compute_capability": "SM89"}'

A process of its own, because a parse with plugins aborts where the bare wheel cannot open its own library. The
plugin registered here has the real one's name, types and shapes but no kernel: the plan is built, never run.
"""

# ruff: noqa: D102  (the methods are TensorRT's, documented there)
import json
import sys

sys.path.pop(0)  # this script's folder: nothing in it is to be found by another name's import
import tensorrt_rtx as trt

INT64 = {"XAttention": (5,), "CandidateAttention": (5, 7)}  # which inputs of a plugin are whole numbers


class Attention(trt.IPluginV3, trt.IPluginV3OneCore, trt.IPluginV3OneBuild, trt.IPluginV3OneRuntime):
    """Shapes and types of a node of genrec: the output is like q."""

    def __init__(self, name):
        trt.IPluginV3.__init__(self)
        trt.IPluginV3OneCore.__init__(self)
        trt.IPluginV3OneBuild.__init__(self)
        trt.IPluginV3OneRuntime.__init__(self)
        self.plugin_name, self.plugin_version, self.plugin_namespace = name, "1", ""
        self.num_outputs = 1

    def get_capability_interface(self, kind):
        return self

    def get_output_data_types(self, input_types):
        return [input_types[0]]

    def get_output_shapes(self, inputs, shape_inputs, builder):
        return [trt.DimsExprs(inputs[0])]

    def supports_format_combination(self, place, tensors, num_inputs):
        kind = tensors[place].desc.type
        whole = place in INT64[self.plugin_name]
        wanted = trt.int64 if whole else tensors[0].desc.type
        allowed = (trt.int64,) if whole else (trt.float32, trt.float16, trt.bfloat16)
        return tensors[place].desc.format == trt.TensorFormat.LINEAR and kind == wanted and kind in allowed

    def configure_plugin(self, inputs, outputs):
        pass

    def on_shape_change(self, inputs, outputs):
        pass

    def attach_to_context(self, context):
        return self.clone()

    def get_fields_to_serialize(self):
        return trt.PluginFieldCollection([])

    def get_valid_tactics(self):
        return []

    def set_tactic(self, tactic):
        pass

    def get_workspace_size(self, inputs, outputs):
        return 0

    def enqueue(self, *arguments):
        raise RuntimeError("this plan was built to be looked at, not run")

    def clone(self):
        return Attention(self.plugin_name)


class Creator(trt.IPluginCreatorV3One):
    """Registered in namespace "": in any other the ONNX function body wins over the plugin."""

    def __init__(self, name):
        trt.IPluginCreatorV3One.__init__(self)
        self.name, self.plugin_version, self.plugin_namespace = name, "1", ""
        self.field_names = trt.PluginFieldCollection([])

    def create_plugin(self, name, fields, phase):
        return Attention(self.name)


def build(task):
    """Parse and build one graph; facts about what came out."""
    logger = trt.Logger(trt.Logger.WARNING)
    creators = [Creator(name) for name in INT64]
    for creator in creators:
        trt.get_plugin_registry().register_creator(creator, "")
    builder = trt.Builder(logger)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, logger)
    parser.set_flag(trt.OnnxParserFlag.ENABLE_PLUGIN_OVERRIDE)
    if not parser.parse_from_file(task["onnx"]):
        sys.exit("\n".join(str(parser.get_error(n)) for n in range(parser.num_errors)))
    kinds = [network.get_layer(n).type for n in range(network.num_layers)]
    config = builder.create_builder_config()
    config.num_compute_capabilities = 1
    config.set_compute_capability(getattr(trt.ComputeCapability, task["compute_capability"]), 0)
    profile = builder.create_optimization_profile()
    for name, shapes in task["profile"].items():
        profile.set_shape(name, *shapes)
    config.add_optimization_profile(profile)
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        sys.exit("no plan was built")
    with open(task["plan"], "wb") as file:
        file.write(plan)
    types = {network.get_output(n).name: str(network.get_output(n).dtype) for n in range(network.num_outputs)}
    return {
        "tensorrt_rtx": trt.__version__,
        "layers": len(kinds),
        "plugin_layers": kinds.count(trt.LayerType.PLUGIN_V3),
        "bytes": plan.nbytes,
        "outputs": types,
    }


if __name__ == "__main__":
    print(json.dumps(build(json.loads(sys.argv[1]))))
