"""A lint of tritonserver's command line, as deploy.command makes it: hazards that no config.pbtxt can show."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence

LOOPBACK = {"127.0.0.1", "::1", "localhost"}
MUST_RESTRICT = {"shared-memory", "model-repository", "model-config", "statistics", "trace", "logging"}
FOR_PEOPLE = {"model-config", "statistics"}
RESTRICTING = ("--http-restricted-api", "--grpc-restricted-protocol")
Flags = dict[str, list[str]]


def lint_argv(argv: Sequence[str]) -> list[str]:
    """All messages about a command line `[tritonserver, --flag=value, ...]`; none means clean."""
    flags: Flags = defaultdict(list)
    for argument in argv[1:]:
        name, _, value = argument.partition("=")
        flags[name].append(value)
    rules = (h6_cache, h7_latencies, h9_loopback, h10_restricted, model_control, strict_start)
    return [message for rule in rules for message in rule(flags)]


def h6_cache(flags: Flags) -> Iterator[str]:
    """No response cache at all."""
    if flags["--cache-config"] or flags["--response-cache-byte-size"]:
        yield "H6: a response cache is configured; it leaks a completion-queue slot per miss"


def h7_latencies(flags: Flags) -> Iterator[str]:
    """2.51 has no latency histograms; summaries are the only percentiles it gives."""
    if "summary_latencies=true" not in flags["--metrics-config"]:
        yield "H7: --metrics-config=summary_latencies=true is missing; there would be no latency percentiles"


def h9_loopback(flags: Flags) -> Iterator[str]:
    """Releases before 25.08 can be taken over by whoever reaches them; the default address is 0.0.0.0."""
    for protocol in ("http", "grpc", "metrics"):
        addresses = flags[f"--{protocol}-address"]
        if not addresses or not set(addresses) <= LOOPBACK:
            yield f"H9: --{protocol}-address is {addresses or 'unset'}; this release is for loopback only"


def h10_restricted(flags: Flags) -> Iterator[str]:
    """Client shared memory is always on in 2.51, and the APIs beside inference are open unless restricted."""
    for flag in RESTRICTING:
        closed = {api for apis, _ in _restrictions(flags[flag]) for api in apis}
        if missing := MUST_RESTRICT - closed:
            yield f"H10: {flag} leaves open {', '.join(sorted(missing))}; close them with a token"


def model_control(flags: Flags) -> Iterator[str]:
    """Loading models over the network is running code over the network: whoever may, must not be a client."""
    if flags["--model-control-mode"] == ["explicit"]:
        for flag in RESTRICTING:
            opened: dict[str, set[str]] = defaultdict(set)
            for apis, secret in _restrictions(flags[flag]):
                opened[secret] |= apis
            if not any("model-repository" in apis and not apis & FOR_PEOPLE for apis in opened.values()):
                yield f"H9: {flag}: model-repository wants a secret of its own, which opens nothing for people"
    elif flags["--model-control-mode"] != ["none"]:
        yield "H9: --model-control-mode must be none, or explicit for a supervisor with a secret of its own"


def _restrictions(values: Sequence[str]) -> Iterator[tuple[set[str], str]]:
    """The APIs that each secret opens; one that could be guessed opens none."""
    for value in values:
        if rule := re.fullmatch(r"([a-z,-]+):([^=]+=.{16,})", value):
            yield set(rule[1].split(",")), rule[2]


def strict_start(flags: Flags) -> Iterator[str]:
    """What is served is what was rendered, all of it or nothing."""
    if "--disable-auto-complete-config" not in flags:
        yield "start: --disable-auto-complete-config is missing; Triton would fill in what nobody wrote"
    if flags["--exit-on-error"] != ["true"]:
        yield "start: --exit-on-error=true is missing; a server without all its models would stay up"
