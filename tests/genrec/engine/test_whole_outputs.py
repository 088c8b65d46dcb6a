"""A pass that gives less than it was asked for is an error: OpenVINO leaves the rest of an array as it was."""

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as nodes

from genrec.engine.openvino_core import new_core
from genrec.engine.openvino_graphs import InferRequest


def test_an_output_is_filled_or_refused():
    read = nodes.parameter([-1, 4], np.float32, "read")
    request = InferRequest(new_core().compile_model(ov.Model([nodes.relu(read)], [read]), "CPU"), {})
    given, whole = np.ones((3, 4), np.float32), np.zeros((3, 4), np.float32)
    request.infer("", [given], [whole])
    assert (whole == 1).all()
    with pytest.raises(RuntimeError, match=r"gave \[3, 4\] where \[4, 4\]"):
        request.infer("", [given], [np.zeros((4, 4), np.float32)])
