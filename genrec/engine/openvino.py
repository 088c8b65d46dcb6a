"""The generator through OpenVINO on a CPU, working in the tensors it is given."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from genrec.engine.blobs import KeptGraphs
from genrec.engine.instructions import chosen
from genrec.engine.interface import WEIGHTS, Array, DecodePass, Passes, Past
from genrec.engine.quiet_openvino import ov
from genrec.errors import ArtifactError
from genrec.files import check_regular, read_json
from genrec.rank.hstu import HstuConfig, NextConfig

PASSES = "passes"  # the graph of prefill and all decode passes, where they are one (build/openvino/graphs.py)
ALONE = {
    "prefill_draft",
    "resume",
    "rank_prefill",
    "extend",
    "rank_split",
    "rank_user",
    "rank_item",
    *HstuConfig.kind.graphs,
    *NextConfig.kind.graphs,
}  # never a part of it
WEIGHTS_FILE = "weights.bin"  # tensors that are inputs of graphs (build/openvino/linear.py)
LINE = 64  # bytes; tensors in it start on cache lines
MOST_TOKENS = 1024  # of one prefill call: more prompts at once only take memory
MOST_SCORES = 400_000  # beams x prompt tokens of one decode call, per head
LEAST_BEAMS = 32  # of a slice: fewer leave the matrix products too thin


class WeightPlace(NamedTuple):
    """Of a tensor in WEIGHTS_FILE: the bytes before it, and its shape."""

    start: int
    shape: tuple[int, ...]


class OpenVinoGraphs:
    """The compiled graphs of one process; each compiles when it is first used."""

    def __init__(
        self, folder: Path, kv_type: str, threads: int, streams: int = 1, cache: bool = True
    ) -> None:
        """`folder` is `engines/openvino`; `threads` are the cores that all `streams` share, 0 for all.

        Compiled graphs are kept in `cache/`, which starts of a server are faster by.
        """
        self._folder = Path(folder)
        self.hints = {
            "PERFORMANCE_HINT": "LATENCY",
            "NUM_STREAMS": streams,
            "INFERENCE_NUM_THREADS": threads,
            "INFERENCE_PRECISION_HINT": kv_type,
        }
        self._one_graph = (self._folder / f"{PASSES}.xml").is_file()
        self._core = ov.Core()
        self.instructions = chosen(self._folder, kv_type)
        libraries = [self._folder / self.instructions.library] if self.instructions else []
        self._kept = KeptGraphs(self._folder / "cache", libraries) if cache else None
        self._compiled: dict[str, Any] = {}
        self._weights = _weights(self._folder, kv_type)
        self.writes_scores = self.instructions is None
        for library in libraries:
            self._add(library)

    def file_of(self, name: str) -> str:
        """Which graph a pass is in."""
        return PASSES if self._one_graph and name not in ALONE else name

    def has(self, name: str) -> bool:
        """Whether a pass was built."""
        return (self._folder / f"{self.file_of(name)}.xml").is_file()

    def new_request(self, file: str) -> InferRequest:
        """An infer request of a graph. Raises ArtifactError when OpenVINO cannot load it."""
        if file not in self._compiled:
            self._compiled[file] = self._compile(self._folder / f"{file}.xml")
        try:
            return InferRequest(self._compiled[file], self._weights)
        except KeyError as error:
            raise ArtifactError(
                self._folder / "engine.json", f"has no place for {error} of {file}.xml"
            ) from error

    def request_with(
        self, file: str, constants: Mapping[str, Array], tables: Mapping[str, Array]
    ) -> InferRequest:
        """An infer request of a graph with weights of its caller's, by name.

        Those of `constants` become a part of the compiled graph, which then lays them out as it likes: as inputs they
        made a ranking of 64 columns 20 % slower. `tables` stay inputs and are read where they lie. Raises
        ArtifactError.
        """
        path = self._folder / f"{file}.xml"
        try:
            graph = self._core.read_model(str(path))
            for port in graph.get_parameters():
                name = port.output(0).any_name
                if name.startswith(WEIGHTS) and name.removeprefix(WEIGHTS) not in tables:
                    values = ov.opset13.constant(constants[name.removeprefix(WEIGHTS)])
                    port.output(0).replace(values.output(0))
                    graph.remove_parameter(port)
            graph.validate_nodes_and_infer_types()
            compiled = self._core.compile_model(graph, "CPU", self.hints)
        except KeyError as error:
            raise ArtifactError(path, f"reads the weight {error}, which was not exported") from error
        except RuntimeError as error:
            raise ArtifactError(path, f"OpenVINO cannot load it: {_said(error)}") from error
        return InferRequest(compiled, {f"{WEIGHTS}{name}": values for name, values in tables.items()})

    def _add(self, library: Path) -> None:
        try:
            self._core.add_extension(str(library))
        except RuntimeError as error:
            raise ArtifactError(library, f"OpenVINO cannot load it: {_said(error)}") from error

    def _compile(self, path: Path) -> Any:
        try:
            if self._kept:
                return self._kept.compile(self._core, path, self.hints)
            return self._core.compile_model(str(path), "CPU", self.hints)
        except RuntimeError as error:
            constants = path.with_suffix(".bin").name
            raise ArtifactError(path, f"OpenVINO cannot load it with {constants}: {_said(error)}") from error


def _said(error: RuntimeError) -> str:
    """OpenVINO's reason in one line, without the places in its sources that come before."""
    return " ".join(
        line for line in str(error).splitlines() if line and not line.startswith("Exception from")
    )


class InferRequest:
    """An infer request of a graph of one pass, or of several of which one runs: the others get empty tensors.

    Inputs that are weights get them once.
    """

    def __init__(self, compiled: Any, weights: Mapping[str, Array]) -> None:
        self._request = compiled.create_infer_request()
        for place, port in enumerate(compiled.inputs):
            if port.any_name.startswith(WEIGHTS):
                self._request.set_input_tensor(place, _tensor(weights[port.any_name]))
        self._inputs, self._outputs = _ports(compiled.inputs), _ports(compiled.outputs)
        self._ran = ""
        for name in self._inputs:
            if name:
                self._empty(name)

    def infer(self, name: str, inputs: Sequence[Array], outputs: Sequence[Array]) -> Any:
        """Run pass `name` on arrays where they lie, in the graph's order."""
        name = name if name in self._inputs else ""
        if self._ran != name:
            self._empty(self._ran)
            self._ran = name
        for (place, _), array in zip(self._inputs[name], inputs, strict=True):
            self._request.set_input_tensor(place, _tensor(array))
        for (place, _), array in zip(self._outputs[name], outputs, strict=bool(outputs)):
            self._request.set_output_tensor(place, _tensor(array))
        self._request.infer()
        return self._request

    def _empty(self, name: str) -> None:
        for place, tensor in self._inputs.get(name, ()):
            self._request.set_input_tensor(place, tensor)
        for place, tensor in self._outputs.get(name, ()):
            self._request.set_output_tensor(place, tensor)


def _ports(ports: Sequence[Any]) -> dict[str, list[tuple[int, ov.Tensor]]]:
    """Pass -> its ports' places, and an empty tensor for each, without weights. A graph of one pass has no pass in its
    names.
    """  # fmt: skip
    found: dict[str, list[tuple[int, ov.Tensor]]] = {}
    for place, port in enumerate(ports):
        if port.any_name.startswith(WEIGHTS):
            continue
        shape = [each.get_length() if each.is_static else 0 for each in port.get_partial_shape()]
        name, dot, _ = port.any_name.partition(".")
        found.setdefault(name if dot else "", []).append((place, ov.Tensor(port.get_element_type(), shape)))
    return found


def load_passes(folder: Path, kv_type: str, threads: int, streams: int) -> list[Passes]:
    """See `genrec.engine.load.load_passes`."""
    graphs = OpenVinoGraphs(folder, kv_type, threads, streams)
    return [OpenVinoPasses(graphs) for _ in range(streams)]


class OpenVinoPasses:
    """See `genrec.engine.interface.Passes`."""

    def __init__(self, graphs: OpenVinoGraphs) -> None:
        self._graphs, self.resumes = graphs, graphs.has("resume")
        self._requests: dict[str, InferRequest] = {}

    def prefill(self, tokens: Array, lengths: Array, logits: Array, kv: Sequence[Array]) -> None:
        """See `Passes.prefill`."""
        for rows in _rows(tokens):
            self._infer(
                "prefill", [tokens[rows], lengths[rows]], [logits[rows], *(each[rows] for each in kv)]
            )

    def resume(self, tokens: Array, past: Past, logits: Array, new: Sequence[Array]) -> None:
        """See `ResumePasses.resume`."""
        kv = past.kv
        if self._graphs.writes_scores:  # of all keys, whatever lies behind the past
            kv = [np.ascontiguousarray(each[:, :, : past.tokens]) for each in kv]
        self._infer("resume", [tokens, np.array([past.tokens]), *kv], [logits, *new])

    def decode(self, given: DecodePass) -> None:
        """See `Passes.decode`. Where attention is not one operation, many beams over a long prompt go in slices.

        OpenVINO then writes out the scores of a whole attention, W x H x S: at BW 1,024 and S = 3,000 that was twenty
        times the KV. At BW 512 and S = 1,023 two slices take 3 % longer than one, four take 7 %. Results do not differ.
        """
        (batch, beams), span = given.codes.shape, given.shared[0].shape[2]
        if not self._graphs.writes_scores or batch * beams * span <= MOST_SCORES:
            self._decode(given)
            return
        size = max(ceil(beams / ceil(beams * span / MOST_SCORES)), LEAST_BEAMS)  # all slices alike
        for row in range(batch):
            one = slice(row, row + 1)
            for first in range(0, beams, size):
                part = (one, slice(first, first + size))
                shared = [tensor[one] for tensor in given.shared]
                unshared = [[tensor[part] for tensor in each] for each in given.unshared]
                codes, lengths, logits = given.codes[part], given.lengths[one], given.logits[part]
                self._decode(DecodePass(given.level, codes, lengths, shared, unshared, logits))

    def _decode(self, given: DecodePass) -> None:
        inputs, earlier = [given.codes, given.lengths, *given.shared], given.level - 2
        for n in range(0, len(given.shared), 2):  # the graph's order: per layer, per earlier level, k then v
            inputs += [given.unshared[n + kind][u] for u in range(earlier) for kind in (0, 1)]
        written = [each[earlier] for each in given.unshared if len(each) > earlier]
        self._infer(f"decode_{given.level}", inputs, [given.logits, *written])

    def draft_states(self, tokens: Array, lengths: Array) -> NDArray[np.float32]:
        """See `Passes.draft_states`."""
        found = []
        for rows in _rows(tokens):
            request = self._infer("prefill_draft", [tokens[rows], lengths[rows]], [])
            found.append(request.get_output_tensor(0).data.copy())
        states: NDArray[np.float32] = np.concatenate(found)
        return states

    def _infer(self, name: str, inputs: Sequence[Array], outputs: Sequence[Array]) -> Any:
        file = self._graphs.file_of(name)
        if file not in self._requests:
            self._requests[file] = self._graphs.new_request(file)
        return self._requests[file].infer(name, inputs, outputs)


def _weights(folder: Path, kv_type: str) -> dict[str, Array]:
    """By name, bf16 as its bits, mapped: however many graphs and processes have them, their pages are there once.

    Raises ArtifactError.
    """
    path = folder / WEIGHTS_FILE
    if not os.path.lexists(path):
        return {}
    facts, kind = read_json(folder / "engine.json"), np.dtype(np.uint16 if kv_type == "bf16" else np.float32)
    try:
        # "c" as OpenVINO takes no read-only arrays.
        values = np.memmap(check_regular(path), kind, "c").view(np.ndarray)
        return {
            name: values[start // kind.itemsize :][: np.prod(shape)].reshape(shape)
            for name, (start, shape) in facts["weights"].items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ArtifactError(path, f"holds other weights than engine.json says: {error}") from error


def _rows(tokens: Array) -> list[slice]:
    """Rows of [B, S] for one prefill call each."""
    count = max(MOST_TOKENS // tokens.shape[1], 1)
    return [slice(first, first + count) for first in range(0, len(tokens), count)]


def _tensor(array: Array) -> ov.Tensor:
    if not array.flags.writeable:  # OpenVINO takes no read-only arrays; of an input it writes nothing
        array = array.view()
        array.flags.writeable = True
    if array.dtype == np.uint16:  # NumPy has no bf16
        return ov.Tensor(array, array.shape, ov.Type.bf16)
    return ov.Tensor(array, shared_memory=True)
