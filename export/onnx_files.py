"""The generator as ONNX: `prefill.onnx` and one `decode_<l>.onnx` per later level, dynamic over B, S and W.

With a draft head also `prefill_draft.onnx`, and the head itself as plain arrays (`genrec.draft.head` runs them).
Levels have graphs of their own because their number is known: each holds its own block of the head and reads
exactly the unshared tokens it has.
"""

from __future__ import annotations

import logging
import warnings
from pathlib import Path

import onnx
import torch
from torch.export import Dim

from export.generator import DOMAIN, DRAFT, OPSET
from export.xattention import XAttention, symbolic
from genrec.draft.head import FILE_NAME as DRAFT_HEAD
from genrec.nn.checkpoint import load_generator
from genrec.nn.draft_checkpoint import load_draft, save_serving
from genrec.nn.draft_head import DraftHead, PrefillDraftGraph
from genrec.nn.model import Generator
from genrec.nn.xattention import DecodeGraph, PrefillGraph, fresh_names, past_names, shared_names


def _export(
    module: torch.nn.Module, args: tuple, shapes: tuple, inputs: list[str], outputs: list[str], path: Path
) -> None:
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
def export_graph(generator: Generator, name: str, folder: Path) -> Path:
    """Write one graph of `generator`, its weights beside it in `<name>.onnx.data`; returns the ONNX file."""
    config, path = generator.config, folder / f"{name}.onnx"
    batch, span, beams = Dim("B", max=4096), Dim("S", max=config.max_prompt), Dim("W", max=4096)
    length, names = torch.tensor([5, 6]), shared_names(config)
    if name == "prefill":
        example, shapes = (torch.zeros(2, 7, dtype=torch.int64), length), ({0: batch, 1: span}, {0: batch})
        _export(
            PrefillGraph(generator), example, shapes, ["tokens", "prompt_length"], ["logits", *names], path
        )
        return path
    level = int(name.removeprefix("decode_"))
    before = past_names(config, level)
    shared = [torch.randn(2, config.num_key_value_heads, 7, config.head_dim) for _ in names]
    past = [torch.randn(2, 3, config.num_key_value_heads, config.head_dim) for _ in before]
    _export(
        DecodeGraph(generator, level, symbolic), (torch.zeros(2, 3, dtype=torch.int64), length, shared, past),
        ({0: batch, 1: beams}, {0: batch}, [{0: batch, 2: span}] * len(names), [{0: batch, 1: beams}] * len(before)),
        ["codes", "prompt_length", *names, *before],
        ["logits"] if level == config.levels else ["logits", *fresh_names(config)], path,
    )  # fmt: skip
    return path


@torch.no_grad()
def export_draft(generator: Generator, head: DraftHead, folder: Path) -> Path:
    """Write `prefill_draft.onnx` and the head's arrays; returns the ONNX file. S counts the placeholders too."""
    config, path = generator.config, folder / f"{DRAFT}.onnx"
    batch, span = Dim("B", max=4096), Dim("S", max=config.max_prompt + config.levels)
    example = (torch.zeros(2, 11, dtype=torch.int64), torch.tensor([5, 6]))
    _export(
        PrefillDraftGraph(generator, head), example, ({0: batch, 1: span}, {0: batch}),
        ["tokens", "prompt_length"], ["states"], path,
    )  # fmt: skip
    save_serving(generator, head, folder / DRAFT_HEAD)
    return path


def export_from(model_folder: Path, name: str, folder: Path) -> Path:
    """Write the graph `name` of the checkpoint in `model_folder`; returns the ONNX file. For a process of its own."""
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's own, about names of axes
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)
        generator = load_generator(model_folder)
        if name == DRAFT:
            return export_draft(generator, load_draft(model_folder), folder)
        return export_graph(generator, name, folder)
