"""The second route into TensorRT: an ahead-of-time quick plugin, whose PTX is baked into the plan.

Needs full TensorRT 10.9 or later (`tensorrt.plugin`), so it is imported in the container only. NOT RUN HERE: no
package registry has full TensorRT. What is tested here is the PTX: entry points and their parameters.
"""

from __future__ import annotations

from pathlib import Path

from onnx import ModelProto, helper

from build.plugin.compile import compile_ptx

NAMESPACE = "genrec"
THREADS, ROWS, KEYS = 128, 64, 32  # of xattention.cuh
SIZES = (32, 64, 128)


def entry_point(kind: str, size: int) -> str:
    """Kernel of a type (`f16`, `bf16`) and head size D. ValueError for one that quick.cu does not have."""
    if kind not in ("f16", "bf16") or size not in SIZES:
        raise ValueError(f"no quick kernel for {kind}, head size {size}; have f16 and bf16, {SIZES}")
    return f"xattention_{kind}_{size}"


def shared_bytes(size: int) -> int:
    """Tile<T, D>::BYTES: two stages of k and v, 8 elements of padding to a row."""
    return 4 * KEYS * (size + 8) * 2


def for_quick_plugins(model: ModelProto) -> ModelProto:
    """The graph with its attention nodes pointed at namespace `genrec`, where quick plugins live."""
    for node in model.graph.node:
        if node.op_type == "XAttention":
            node.attribute.append(helper.make_attribute("plugin_namespace", NAMESPACE))
    return model


def register(ptx_file: Path) -> None:
    """Compile the PTX and tell TensorRT of the plugin, before a network is parsed."""
    import tensorrt as trt
    import tensorrt.plugin as trtp

    compile_ptx(ptx_file)
    ptx = ptx_file.read_bytes()

    @trtp.register(f"{NAMESPACE}::XAttention")  # type: ignore[untyped-decorator]
    def describe(
        q: trtp.TensorDesc,
        shared_k: trtp.TensorDesc,
        shared_v: trtp.TensorDesc,
        unshared_k: trtp.TensorDesc,
        unshared_v: trtp.TensorDesc,
        prompt_length: trtp.TensorDesc,
    ) -> trtp.TensorDesc:
        return q.like()

    @trtp.autotune(f"{NAMESPACE}::XAttention")  # type: ignore[untyped-decorator]
    def types(q, shared_k, shared_v, unshared_k, unshared_v, prompt_length, outputs):  # type: ignore[no-untyped-def]
        return [
            trtp.AutoTuneCombination(", ".join([kind] * 5 + ["INT64", kind])) for kind in ("FP16", "BF16")
        ]

    @trtp.aot_impl(f"{NAMESPACE}::XAttention")  # type: ignore[untyped-decorator]
    def kernel(q, shared_k, shared_v, unshared_k, unshared_v, prompt_length, outputs, tactic):  # type: ignore[no-untyped-def]
        batch, beams, heads, size = (q.shape_expr[n] for n in range(4))
        kv_heads, span = shared_k.shape_expr[1], shared_k.shape_expr[2]
        fixed = size.constant_value()
        launch = trtp.KernelLaunchParams()
        launch.grid_x = trtp.cdiv(beams * (heads // kv_heads), ROWS)
        launch.grid_y, launch.grid_z, launch.block_x = kv_heads, batch, THREADS
        launch.shared_mem = shared_bytes(fixed)
        extras = trtp.SymIntExprs.from_tuple(
            [trtp.SymInt32(x) for x in (beams, heads, kv_heads, span, unshared_k.shape_expr[2])]
        )
        name = entry_point("f16" if q.dtype == trt.float16 else "bf16", fixed)
        return name.encode(), ptx, launch, extras
