"""Graphs through OpenVINO on a CPU: compiled when they are first used, on tensors where they lie."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from genrec.cores import core_limit
from genrec.engine.blobs import KeptGraphs
from genrec.engine.instructions import chosen
from genrec.engine.interface import WEIGHTS, Array
from genrec.engine.openvino_core import new_core
from genrec.engine.quiet_openvino import ov
from genrec.errors import ArtifactError
from genrec.files import check_regular, read_json
from genrec.rank.hstu import HstuConfig, NextConfig

PASSES = "passes"  # the graph of prefill and all decode passes, where they are one (build/openvino/graphs.py)
RANK_TOGETHER = "rank_together"  # `rank_split` of up to RANKINGS users (build/openvino/together.py)
RANKINGS = 8
# Never a part of it
ALONE = {
    "prefill_draft",
    "resume",
    "resume_draft",
    "decode_all",
    "rank_prefill",
    "extend",
    "rank_split",
    RANK_TOGETHER,
    "rank_user",
    "rank_item",
    *HstuConfig.kind.graphs,
    *NextConfig.kind.graphs,
}
WEIGHTS_FILE = "weights.bin"  # tensors that are inputs of graphs (build/openvino/linear.py)


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
            "INFERENCE_NUM_THREADS": threads or core_limit(),
            # Each compiled graph, of this process and of others, would take the first cores for its own.
            "ENABLE_CPU_PINNING": False,
            "INFERENCE_PRECISION_HINT": kv_type,
        }
        self._one_graph = (self._folder / f"{PASSES}.xml").is_file()
        self._core = new_core()
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
            ports = {port.output(0).any_name: port for port in graph.get_parameters()}
            read = {name.removeprefix(WEIGHTS): ports[name] for name in ports if name.startswith(WEIGHTS)}
            _check_shapes(path, read, constants)
            for name, port in read.items():
                if name not in tables:
                    port.output(0).replace(ov.opset13.constant(constants[name]).output(0))
                    graph.remove_parameter(port)
            graph.validate_nodes_and_infer_types()
            compiled = self._core.compile_model(graph, "CPU", self.hints)
        except RuntimeError as error:
            raise ArtifactError(path, f"OpenVINO cannot load it: {self._said(error)}") from error
        return InferRequest(compiled, {f"{WEIGHTS}{name}": values for name, values in tables.items()})

    def _add(self, library: Path) -> None:
        try:
            self._core.add_extension(str(library))
        except RuntimeError as error:
            raise ArtifactError(library, f"OpenVINO cannot load it: {self._said(error)}") from error

    def _compile(self, path: Path) -> Any:
        try:
            if self._kept:
                return self._kept.compile(self._core, path, self.hints)
            return self._core.compile_model(str(path), "CPU", self.hints)
        except RuntimeError as error:
            constants = path.with_suffix(".bin").name
            raise ArtifactError(
                path, f"OpenVINO cannot load it with {constants}: {self._said(error)}"
            ) from error

    def _said(self, error: RuntimeError) -> str:
        """OpenVINO's reason in one line, without the places in its sources that come before. Operations of another
        release cannot be loaded: where the engines are of one, that and what helps.
        """
        lines = (line for line in str(error).splitlines() if line and not line.startswith("Exception from"))
        built, here = self._built_with(), _release(ov.get_version())
        helps = f"; it is of OpenVINO {built}, here is {here}: `genrec build` makes it anew"
        return " ".join(lines) + (helps if built not in ("", here) else "")

    def _built_with(self) -> str:
        """The release of OpenVINO that the engines are of; "" where they do not say."""
        try:
            return _release(str(read_json(self._folder / "engine.json")["openvino"]))
        except (ArtifactError, KeyError, TypeError):
            return ""


def _release(version: str) -> str:
    """2026.4.1 of 2026.4.1-22982-e213a147257."""
    return version.partition("-")[0]


def _check_shapes(path: Path, read: Mapping[str, Any], given: Mapping[str, Array]) -> None:
    """Raises ArtifactError where a graph's weights, ports by name, are not all those that it is given.

    It is of an earlier export of another shape then, which OpenVINO might take these for.
    """
    for name in sorted(read.keys() | given.keys()):
        wanted = read[name].get_output_partial_shape(0) if name in read else None
        found = list(given[name].shape) if name in given else None
        if wanted is None or found is None or not wanted.compatible(ov.PartialShape(found)):
            problem = f"reads {name} as {wanted or 'none'}, onnx/ has {found or 'none'}"
            raise ArtifactError(path, f"{problem}; `genrec build` makes it anew")


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

    def infer(self, name: str, inputs: Sequence[Array], outputs: Sequence[Array | None]) -> list[Array]:
        """Run pass `name` on arrays where they lie, in the graph's order; the outputs.

        An output that is None is lent until the request's next pass: it lies where OpenVINO wrote it, which copies the
        others into their arrays. A request lends the same outputs each time: it would write to an array that it was
        given before. Raises RuntimeError where a pass gives less than an array takes: OpenVINO leaves the rest as it
        was.
        """
        name = name if name in self._inputs else ""
        if self._ran != name:
            self._empty(self._ran)
            self._ran = name
        for (place, _), array in zip(self._inputs[name], inputs, strict=True):
            self._request.set_input_tensor(place, _tensor(array))
        places = [place for place, _ in self._outputs[name]]
        given = {
            place: (array, _tensor(array))
            for place, array in zip(places, outputs, strict=True)
            if array is not None
        }
        for place, (_, tensor) in given.items():
            self._request.set_output_tensor(place, tensor)
        self._request.infer(share_outputs=True)  # else it answers copies of all outputs
        for array, tensor in given.values():
            if tensor.size != array.size:
                raise RuntimeError(f"a pass gave {list(tensor.shape)} where {list(array.shape)} was expected")
        return [given[place][0] if place in given else self._lent(place) for place in places]

    @property
    def profiling_info(self) -> Any:
        """OpenVINO's times of the nodes, over all requests of the graph."""
        return self._request.profiling_info

    def _lent(self, place: int) -> Array:
        tensor = self._request.get_output_tensor(place)
        array: Array = tensor.data
        return array.view(np.uint16) if tensor.element_type == ov.Type.bf16 else array

    def _empty(self, name: str) -> None:
        for place, tensor in self._inputs.get(name, ()):
            self._request.set_input_tensor(place, tensor)
        for place, tensor in self._outputs.get(name, ()):
            self._request.set_output_tensor(place, tensor)


class Stream:
    """One of those who run graphs at the same time: an infer request of its own for each graph that it meets."""

    def __init__(self, graphs: OpenVinoGraphs) -> None:
        self._graphs = graphs
        self._requests: dict[tuple[str, bool], InferRequest] = {}  # of a graph, and whether it lends

    def _infer(self, name: str, inputs: Sequence[Array], outputs: Sequence[Array | None]) -> list[Array]:
        """Run pass `name`, as `InferRequest.infer` does. Raises ArtifactError where its graph cannot be loaded."""
        key = file, _ = self._graphs.file_of(name), any(each is None for each in outputs)
        if key not in self._requests:
            self._requests[key] = self._graphs.new_request(file)
        return self._requests[key].infer(name, inputs, outputs)


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


def _tensor(array: Array) -> ov.Tensor:
    if not array.flags.writeable:  # OpenVINO takes no read-only arrays; of an input it writes nothing
        array = array.view()
        array.flags.writeable = True
    if array.dtype == np.uint16:  # NumPy has no bf16
        return ov.Tensor(array, array.shape, ov.Type.bf16)
    return ov.Tensor(array, shared_memory=True)
