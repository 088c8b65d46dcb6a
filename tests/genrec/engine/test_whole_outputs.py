"""A pass fills the arrays it is given, all of them, and makes no others: OpenVINO answers copies if it is not told."""

import tracemalloc

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as nodes

from genrec.engine.openvino_core import new_core
from genrec.engine.openvino_graphs import InferRequest, Stream


@pytest.fixture
def request_of_rows() -> InferRequest:
    read = nodes.parameter([-1, 4], np.float32, "read")
    return InferRequest(new_core().compile_model(ov.Model([nodes.relu(read)], [read]), "CPU"), {})


def test_an_output_is_filled_or_refused(request_of_rows):
    given, whole = np.ones((3, 4), np.float32), np.zeros((3, 4), np.float32)
    request_of_rows.infer("", [given], [whole])
    assert (whole == 1).all()
    with pytest.raises(RuntimeError, match=r"gave \[3, 4\] where \[4, 4\]"):
        request_of_rows.infer("", [given], [np.zeros((4, 4), np.float32)])


def test_no_copy_of_an_output_is_made(request_of_rows):
    given, filled = np.ones((1 << 20, 4), np.float32), np.zeros((1 << 20, 4), np.float32)
    tracemalloc.start()  # knows of NumPy's memory
    try:
        request_of_rows.infer("", [given], [filled])
        assert tracemalloc.get_traced_memory()[1] < filled.nbytes // 8
    finally:
        tracemalloc.stop()
    assert filled[-1, -1] == 1


def test_a_pass_that_lends_writes_to_no_array_that_another_was_given(request_of_rows):
    class Graphs:
        """Of one pass."""

        file_of = staticmethod(lambda name: name)
        new_request = staticmethod(
            lambda name: InferRequest(request_of_rows._request.get_compiled_model(), {})
        )

    stream, given = Stream(Graphs()), np.zeros((3, 4), np.float32)
    for _ in range(2):
        stream._infer("rows", [np.ones((3, 4), np.float32)], [given])
        for rows in (3, 2, 5):
            (lent,) = stream._infer("rows", [np.full((rows, 4), 2, np.float32)], [None])
            assert (given == 1).all() and lent.tolist() == [[2] * 4] * rows
