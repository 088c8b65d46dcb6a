"""A user's prefix on another server: is it cheaper to fetch it or to compute it again (RelayGR, local or remote)?

    genrec bench relay_fetch [ARTIFACT ...] [--lengths 1024,2048,4096,8192] [--repeats 9]

Three ways to a prefix that a ranking needs. `local`: it lies in this server's pool, where affinity has sent the user;
it is found, and every byte read once. `remote`: another node has it, and Mooncake Store brings it into this pool over
TCP; then as above. `computed`: the ranker's passes make it anew, in one piece. Two nodes are two processes of this
machine, in a network of their own, because the store listens on every address: what is called remote crosses loopback
and no wire. Needs `pip install 'genrec-triton[mooncake]'` and a right to make networks. By default the model is that
of `genrec bench relay`.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from genrec.artifact import load_config
from genrec.engine.load_ranker import load_entry_layout
from genrec.errors import GenrecError, InputError
from genrec.leftovers import SHM, own_prefix
from genrec.settings import Settings
from perf.kit import report
from perf.kit.store_master import MASTER
from perf.relay.model import made

ALONE = ("unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$0" "$@"')
WAYS = ("local", "remote", "computed")


def main(argv: Sequence[str] | None = None) -> None:
    """Print a table per model and one JSON object as the last line. Raises InputError, GenrecError."""
    parser = report.arguments("relay_fetch", __doc__)
    parser.add_argument("artifacts", type=Path, nargs="*", help="with a ranker; default: a mock one")
    parser.add_argument("--lengths", default="1024,2048,4096,8192", help="tokens of the prefix")
    parser.add_argument("--repeats", type=int, default=9, help="of each way, in turns")
    a = parser.parse_args(argv)
    lengths = report.numbers_of(a, "lengths")
    if find_spec("mooncake") is None or not shutil.which(MASTER):
        raise InputError("mooncake", "is not installed", "pip install 'genrec-triton[mooncake]'")
    run = report.begin(a)
    artifacts = a.artifacts or [made(Path("artifacts/mock-relay"), 128, 2)]
    for artifact in artifacts:
        check_lengths(artifact, lengths)
    found = {artifact.name: measured(artifact, a.lengths, a.repeats) for artifact in artifacts}
    for name, of in found.items():
        print(f"\n{name}, {of['token_bytes']} bytes a token, medians in ms")
        print(report.columns(["tokens", "MB", *WAYS], rows_of(of)), flush=True)
    name, first = next(iter(found.items()))
    ms = {tokens: {way: median(of[way]) for way in WAYS} for tokens, of in first["ms"].items()}
    longest = ms[max(ms, key=int)]
    run.publish(
        {
            "remote_over_local": longest["remote"] / longest["local"],
            "computed_over_remote": longest["computed"] / longest["remote"],
            "model": name, "token_bytes": first["token_bytes"], "ms": ms, "models": found,
        },
        repeats=a.repeats,
    )  # fmt: skip


def check_lengths(artifact: Path, lengths: Sequence[int]) -> None:
    """Raises InputError for a prefix of less than an item, of which nothing is kept, or of more than a history."""
    config = load_config(artifact)
    least, most = load_entry_layout(Settings(artifact, artifact), config).step, config.max_prompt
    for tokens in lengths:
        if not least <= tokens <= most:
            limit = f"{least}, an item's tokens, to {most}, which {artifact.name} reads"
            raise InputError("lengths", f"holds {tokens}", limit)


def measured(artifact: Path, lengths: str, repeats: int) -> dict[str, Any]:
    """`token_bytes`, and `ms`: tokens -> way -> milliseconds of each repeat. Raises GenrecError."""
    work = [sys.executable, "-m", "perf.relay.fetch_nodes", str(artifact), lengths, str(repeats)]
    with TemporaryDirectory(prefix=own_prefix(), dir=SHM) as folder:  # here: the nodes may be killed
        run = subprocess.run([*ALONE, *work, folder], stdout=subprocess.PIPE, text=True)
    if run.returncode:
        raise GenrecError(f"relay_fetch: the two nodes ended with {run.returncode}; what they said is above")
    found: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return found


def rows_of(found: dict[str, Any]) -> list[list[str]]:
    """Cells of the table."""
    return [
        [
            tokens,
            f"{int(tokens) * found['token_bytes'] / 1e6:.1f}",
            *(f"{median(ms[way]):.2f}" for way in WAYS),
        ]
        for tokens, ms in found["ms"].items()
    ]


if __name__ == "__main__":
    main()
