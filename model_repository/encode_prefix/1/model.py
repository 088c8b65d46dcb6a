"""Triton's side of the step `encode_prefix`: the step is in genrec/steps, the glue in genrec/triton/adapter.py."""

from genrec.triton.adapter import step_model

TritonPythonModel = step_model("encode_prefix")
