"""Config lint: every config.pbtxt against the hazards of tritonserver 2.51 (24.10), H1 to H11.

    python -m ensembles.lint model_repository

A rule is one small function from the repository to messages; each message begins with the hazard it guards
against and says why. What a config cannot show is guarded elsewhere: tests check the server's command line (H6, H7,
H9, H10), and docs/upkeep.md says where the rest is handled.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import TYPE_STRING, ModelConfig

from ensembles.served import MOST_INSTANCES
from genrec.words import counted


@dataclass(frozen=True)
class Repository:
    """Parsed configs by model name, the Python source of each, and what did not parse."""

    configs: dict[str, ModelConfig]
    sources: dict[str, str]
    unparsed: dict[str, str]


Rule = Callable[[Repository], Iterator[str]]


def read_repository(folder: Path) -> Repository:
    """Read every `<model>/config.pbtxt` and `<model>/configs/*.pbtxt` with Triton's own protobuf."""
    repository = Repository({}, {}, {})
    for path in sorted([*folder.glob("*/config.pbtxt"), *folder.glob("*/configs/*.pbtxt")]):
        name = path.relative_to(folder).as_posix()
        try:
            repository.configs[name] = text_format.Parse(path.read_text(), ModelConfig())
        except (text_format.ParseError, UnicodeDecodeError) as error:
            repository.unparsed[name] = str(error)
    for path in sorted(folder.glob("*/*/model.py")):
        repository.sources[path.relative_to(folder).as_posix()] = path.read_text()
    return repository


def parses(repository: Repository) -> Iterator[str]:
    """A field this release does not know, max_inflight_requests among them (H5), is an error at load."""
    for name, error in repository.unparsed.items():
        hazard = "H5: " if "max_inflight_requests" in error else ""
        yield f"{hazard}{name}: not a configuration of Triton 2.51: {error}"


def h1_queue_policy_with_delay(repository: Repository) -> Iterator[str]:
    """A queue policy turns prefetch off; with a queue delay the batcher then starves slowly."""
    for name, config in repository.configs.items():
        batching = config.dynamic_batching
        if batching.max_queue_delay_microseconds and _has_queue_policy(config):
            yield (
                f"H1: {name}: a queue policy with a queue delay starves the model until it is reloaded "
                "(server#8870); choose one"
            )


def _has_queue_policy(config: ModelConfig) -> bool:
    batching = config.dynamic_batching
    return bool(
        batching.priority_levels
        or batching.priority_queue_policy
        or batching.HasField("default_queue_policy")
    )


def h4_rejecting_branch(repository: Repository) -> Iterator[str]:
    """A rejection in one of two parallel branches hangs the ensemble."""
    by_name = {config.name: config for config in repository.configs.values()}
    for name, config in repository.configs.items():
        for model in sorted(_parallel_models(config)):
            if model in by_name and _queue_limit(by_name[model]):
                yield (
                    f"H4: {name}: {model} limits its queue and runs beside another step: a rejection hangs "
                    "the ensemble (core#466); admit before the ensemble"
                )


def _queue_limit(config: ModelConfig) -> int:
    batching = config.dynamic_batching
    policies = [batching.default_queue_policy, *batching.priority_queue_policy.values()]
    return max(policy.max_queue_size for policy in policies)


def _parallel_models(config: ModelConfig) -> set[str]:
    """Models of steps that can be in flight together: neither waits, directly or not, for the other."""
    steps = list(config.ensemble_scheduling.step)
    maker = {tensor: n for n, step in enumerate(steps) for tensor in step.output_map.values()}
    waits_for: list[set[int]] = [set() for _ in steps]
    for _ in steps:  # as many rounds as the longest chain has steps
        for n, step in enumerate(steps):
            direct = {maker[tensor] for tensor in step.input_map.values() if tensor in maker}
            waits_for[n] |= direct.union(*(waits_for[m] for m in direct))
    return {
        steps[k].model_name
        for a in range(len(steps))
        for b in range(a)
        if a not in waits_for[b] and b not in waits_for[a]
        for k in (a, b)
    }


def h6_response_cache(repository: Repository) -> Iterator[str]:
    """The response cache leaks."""
    for name, config in repository.configs.items():
        if config.response_cache.enable:
            yield f"H6: {name}: response_cache leaks a slot per miss (core#449); cache in the model"


def h8_bytes(repository: Repository) -> Iterator[str]:
    """BYTES tensors are slow in the Python backend."""
    for name, config in repository.configs.items():
        for tensor in [*config.input, *config.output]:
            if tensor.data_type == TYPE_STRING:
                yield f"H8: {name}: {tensor.name} is TYPE_STRING, slow in the Python backend; send integers"


def h11_bls(repository: Repository) -> Iterator[str]:
    """BLS loses outputs that were not requested and response parameters, and is slow."""
    for name, source in repository.sources.items():
        if re.search(r"\bInferenceRequest\b", source):
            yield f"H11: {name}: calls other models (BLS); chain steps in an ensemble instead"


def batching_is_set(repository: Repository) -> Iterator[str]:
    """A step that cannot batch slows the whole ensemble; preferred sizes are for TensorRT profiles."""
    for name, config in repository.configs.items():
        if config.max_batch_size < 1:
            yield f"batching: {name}: max_batch_size is {config.max_batch_size}; nothing can batch"
        if config.dynamic_batching.preferred_batch_size and config.backend != "tensorrt":
            yield f"batching: {name}: preferred_batch_size only delays, outside TensorRT profiles"
        if config.platform != "ensemble" and not config.HasField("dynamic_batching"):
            yield f"batching: {name}: no dynamic_batching; every request would run alone"


def ragged_batches(repository: Repository) -> Iterator[str]:
    """Histories differ in length: without ragged batches unequal shapes run one by one."""
    for name, config in repository.configs.items():
        for tensor in config.input:
            if config.backend == "python" and -1 in tensor.dims and not tensor.allow_ragged_batch:
                yield f"ragged: {name}: {tensor.name} varies in length but has no allow_ragged_batch"


def warmups(repository: Repository) -> Iterator[str]:
    """Triton refuses a warm-up of an ensemble; a model without one is ready before it can work."""
    for name, config in repository.configs.items():
        if config.platform == "ensemble" and config.model_warmup:
            yield f"warmup: {name}: an ensemble cannot be warmed up (server#6326); warm its models"
        if config.platform != "ensemble" and not config.model_warmup:
            yield f"warmup: {name}: no model_warmup; its first request would pay for loading"


def not_decoupled(repository: Repository) -> Iterator[str]:
    """Decoupled models answer over streams only."""
    for name, config in repository.configs.items():
        if config.model_transaction_policy.decoupled:
            yield f"decoupled: {name}: forces gRPC streams on every client; a request has one answer here"


def explicit_instances(repository: Repository) -> Iterator[str]:
    """The default instance group asks for a GPU when it sees one."""
    for name, config in repository.configs.items():
        if config.backend == "python" and not config.instance_group:
            yield f"instances: {name}: no instance_group; say how many processes and where"
        for group in config.instance_group:
            if not 1 <= group.count <= MOST_INSTANCES:
                yield f"instances: {name}: asks for {group.count} processes; 1 to {MOST_INSTANCES}"


def named_like_folder(repository: Repository) -> Iterator[str]:
    """Triton refuses a model whose name is not its folder's."""
    for name, config in repository.configs.items():
        # A level's plan (decode_2) has its committed configuration beside the Python model's (decode).
        if not re.fullmatch(re.escape(name.split("/")[0]) + r"(_\d+)?", config.name):
            yield f"name: {name}: says {config.name!r}"


RULES: tuple[Rule, ...] = (
    parses,
    h1_queue_policy_with_delay,
    h4_rejecting_branch,
    h6_response_cache,
    h8_bytes,
    h11_bls,
    batching_is_set,
    ragged_batches,
    warmups,
    not_decoupled,
    explicit_instances,
    named_like_folder,
)


def lint(folder: Path) -> list[str]:
    """All messages about a model repository; none means clean."""
    repository = read_repository(folder)
    if not repository.configs and not repository.unparsed:
        return [f"{folder}: no config.pbtxt in it"]
    return [message for rule in RULES for message in rule(repository)]


def main() -> None:
    """Command line of the lint; the exit status is the number of messages, up to 1."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("repository", type=Path, help="model repository to check")
    messages = lint(parser.parse_args().repository)
    for message in messages:
        print(message)
    print(counted(len(messages), "problem") if messages else "clean")
    sys.exit(bool(messages))


if __name__ == "__main__":
    main()
