"""The master of Mooncake Store, for benchmarks whose nodes share KV over it."""

from __future__ import annotations

MASTER, PORT = "mooncake_master", 21051


def master_command(address: str, *more: str) -> list[str]:
    """That runs it, listening at an address, with more options of its own.

    It ends with the thread that starts it: who is killed cannot end it. `setpriv` comes with `unshare`.
    """
    return [
        "setpriv", "--pdeathsig", "KILL", MASTER, f"--rpc_address={address}", f"--rpc_port={PORT}",
        "--metrics_host=127.0.0.1", "--metrics_port=21003", "--rpc_thread_num=2", *more,
    ]  # fmt: skip
