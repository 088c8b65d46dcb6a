"""Dense weights and their optimizer as named tensors, for checkpoints without pickle."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from genrec.errors import ArtifactError


def state_of(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """`model.<name>` and `optimizer.<parameter's number>.<moment>`."""
    tensors = {f"model.{name}": value for name, value in model.state_dict().items()}
    for number, moments in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{number}.{name}": torch.as_tensor(value) for name, value in moments.items()}
    return tensors


def restore(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, tensors: Mapping[str, torch.Tensor]
) -> None:
    """Take up what `state_of` gave. Raises ArtifactError where it does not fit the model."""
    moments: dict[int, dict[str, torch.Tensor]] = {}
    for name, value in tensors.items():
        if name.startswith("optimizer."):
            _, number, moment = name.split(".")
            moments.setdefault(int(number), {})[moment] = value
    restore_module(model, "model", tensors)
    try:
        groups = optimizer.state_dict()["param_groups"]
        optimizer.load_state_dict({"state": moments, "param_groups": groups})
    except (ValueError, KeyError) as error:
        raise ArtifactError("dense.safetensors", f"does not fit this model: {error}") from error


def restore_module(module: torch.nn.Module, name: str, tensors: Mapping[str, torch.Tensor]) -> None:
    """Take up the tensors `<name>.<key>`. Raises ArtifactError where they do not fit."""
    weights = {key[len(name) + 1 :]: value for key, value in tensors.items() if key.startswith(f"{name}.")}
    try:
        module.load_state_dict(weights)
    except RuntimeError as error:
        raise ArtifactError("dense.safetensors", f"does not fit this model: {error}") from error
