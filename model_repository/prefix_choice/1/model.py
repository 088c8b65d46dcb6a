"""Triton's side of the step `prefix_choice`: the step is in genrec/steps, the glue in genrec/triton/adapter.py."""

from genrec.triton.adapter import step_model

TritonPythonModel = step_model("prefix_choice")
