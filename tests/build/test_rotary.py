"""Angles of rotary positions in bf16: looked up, they are right at every position."""

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as op

from build.openvino import build_openvino
from build.operations import can_be_compiled
from build.rotary import BEHIND, tabulate_angles
from genrec.engine.openvino import OPERATIONS

LONGEST = 3000
FREQUENCY = 10_000.0 ** -(np.arange(0, 16, 2, dtype=np.float32) / 16)


def exported():
    """As in the exported graphs: whole positions, made floats, times frequencies."""
    positions = op.parameter([-1], np.int64)
    column = op.unsqueeze(op.convert(positions, "f32"), op.constant(1))
    angle = op.multiply(column, op.constant(FREQUENCY))
    return ov.Model([op.cos(angle), op.sin(angle)], [positions])


def worst(model):
    """Of cosines and sines of all positions, computed in bf16."""
    positions = np.arange(LONGEST + BEHIND)
    run = ov.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "bf16"})
    angle = positions[:, None] * FREQUENCY.astype(np.float64)
    found = run(positions)
    return max(np.abs(found[place] - truth(angle)).max() for place, truth in enumerate((np.cos, np.sin)))


def test_every_position_has_its_angle():
    model = exported()
    tabulate_angles(model, LONGEST)
    assert worst(model) < 0.005  # 8 bits of a number up to 1


@pytest.mark.parametrize("operation", [False, True])
def test_no_graph_of_bf16_computes_angles(tiny, tmp_path, operation):
    if operation and not can_be_compiled("bf16"):
        pytest.skip("no compiler, or no AMX")
    build_openvino(tiny / "onnx", tmp_path / "engines", "bf16", 48, operation)
    core = ov.Core()
    if operation:
        core.add_extension(str(tmp_path / "engines" / OPERATIONS))
    for path in (tmp_path / "engines").glob("*.xml"):
        kinds = {node.get_type_name() for node in core.read_model(path).get_ops()}
        assert not kinds & {"Cos", "Sin"}, path.name
