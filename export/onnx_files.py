"""The generator as ONNX: `prefill.onnx` and one `decode_<l>.onnx` per later level, dynamic over B, S and W.

Levels have graphs of their own because their number is known: each holds its own block of the head and reads
exactly the unshared tokens it has.
"""

from __future__ import annotations

from pathlib import Path

import onnx
import torch
from torch.export import Dim

from export.xattention import DOMAIN, XAttention, symbolic
from genrec.nn.model import Generator
from genrec.nn.xattention import DecodeGraph, PrefillGraph, fresh_names, past_names, shared_names

OPSET = 20


def _export(module: torch.nn.Module, args: tuple, shapes: tuple, inputs: list[str], outputs: list[str], path: Path) -> None:
    """Trace `module`, attach the function body, check and write."""
    program = torch.onnx.export(
        module.eval(), args, dynamo=True, dynamic_shapes=shapes, input_names=inputs, output_names=outputs,
        opset_version=OPSET, verbose=False, optimize=True,
    )  # fmt: skip
    model = program.model_proto
    if any(node.domain == DOMAIN for node in model.graph.node):
        model.functions.append(XAttention.to_function_proto())
        if DOMAIN not in {o.domain for o in model.opset_import}:
            model.opset_import.append(onnx.helper.make_opsetid(DOMAIN, 1))
    onnx.checker.check_model(model, full_check=False)
    onnx.save(model, str(path), save_as_external_data=True, location=path.name + ".data", size_threshold=1024)


@torch.no_grad()
def export_generator(generator: Generator, folder: Path) -> list[Path]:
    """Write every graph of `generator` into `folder`; returns the ONNX files, prefill first."""
    config = generator.config
    folder.mkdir(parents=True, exist_ok=True)
    batch, span, beams = Dim("B", max=4096), Dim("S", max=config.max_prompt), Dim("W", max=4096)
    length = torch.tensor([5, 6])
    names, written = shared_names(config), [folder / "prefill.onnx"]
    _export(
        PrefillGraph(generator), (torch.zeros(2, 7, dtype=torch.int64), length), ({0: batch, 1: span}, {0: batch}),
        ["tokens", "prompt_length"], ["logits", *names], written[0],
    )  # fmt: skip
    shared = [torch.randn(2, config.num_key_value_heads, 7, config.head_dim) for _ in names]
    for level in range(2, config.levels + 1):
        before = past_names(config, level)
        past = [torch.randn(2, 3, config.num_key_value_heads, config.head_dim) for _ in before]
        fresh = [] if level == config.levels else fresh_names(config)
        written.append(folder / f"decode_{level}.onnx")
        _export(
            DecodeGraph(generator, level, symbolic), (torch.zeros(2, 3, dtype=torch.int64), length, shared, past),
            ({0: batch, 1: beams}, {0: batch}, [{0: batch, 2: span}] * len(names), [{0: batch, 1: beams}] * len(before)),
            ["codes", "prompt_length", *names, *before], ["logits", *fresh], written[-1],
        )  # fmt: skip
    return written
