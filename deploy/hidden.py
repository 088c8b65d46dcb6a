"""Arguments that the process list does not show.

Triton takes the secrets of its restricted APIs from its command line alone, and every local user can read that
(/proc/<pid>/cmdline). So tritonserver is started with place holders. When exec has laid out its memory and before its
first instruction, the pointers of argv are set to strings in its environment, which the kernel shows to its owner alone
(/proc/<pid>/environ). The command line is never other than with place holders: there is no moment to read it in.
"""

from __future__ import annotations

import ctypes
import logging
import os
import struct
import time
from pathlib import Path

from genrec.process import stat_of

HIDDEN = "GENREC_HIDDEN_"  # and a number: variables that hold the arguments as they are meant
PLACE = "--hidden-argument-"  # and the number: what stands for them
DETACH = 17
PATIENCE_S = 10.0  # for a child to come as far as exec
START_STACK, ARG_START, ARG_END, ENV_START, ENV_END = 25, 45, 46, 47, 48  # /proc/<pid>/stat, after the name
log = logging.getLogger("genrec.serve")


def split(argv: list[str], secrets: tuple[str, ...]) -> tuple[list[str], dict[str, str]]:
    """argv with place holders for the arguments that hold a secret, and these as environment variables."""
    shown: list[str] = []
    hidden: dict[str, str] = {}
    for argument in argv:
        if any(secret in argument for secret in secrets):
            number = len(hidden)
            shown.append(f"{PLACE}{number}")
            hidden[f"{HIDDEN}{number}"] = argument
        else:
            shown.append(argument)
    return shown, hidden


def fill_in(pid: int) -> None:
    """Give a child that asked to be traced (PTRACE_TRACEME) and called exec its hidden arguments, and let it run.

    From the thread that started it. Where tracing is forbidden the child shows its arguments, and this says so.
    """
    if not _waits(pid):
        log.warning(
            "this system lets nobody trace a child: other users can read the server's secrets in `ps`"
        )
        return
    try:
        _point_at_environment(pid)
    finally:
        ptrace = ctypes.CDLL(None, use_errno=True).ptrace
        ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
        if ptrace(DETACH, pid, None, None):
            raise OSError(ctypes.get_errno(), "the server's process cannot be let go")


def _waits(pid: int) -> bool:
    """Whether the child stops after its exec; False once it has ended, or runs another program untraced."""
    guard = _program(pid)
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        state = stat_of(pid)[1][0]
        if state == "t":
            return True
        if state in "ZX" or (_program(pid) != guard and not _traced(pid)):
            return False
        time.sleep(0.002)
    return False


def _traced(pid: int) -> bool:
    return "TracerPid:\t0\n" not in Path(f"/proc/{pid}/status").read_text()


def _program(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/exe")
    except OSError:
        return ""


def _point_at_environment(pid: int) -> None:
    """Set those pointers of argv that lead to place holders to what the environment has for them.

    At the start of a process its stack pointer is at argc; argv follows (System V ABI).
    """
    _, fields = stat_of(pid)
    stack, arg_start, arg_end, env_start, env_end = (
        int(fields[n]) for n in (START_STACK, ARG_START, ARG_END, ENV_START, ENV_END)
    )
    with open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory:
        memory.seek(stack)
        (count,) = struct.unpack("@l", memory.read(8))
        pointers = struct.unpack(f"@{count}P", memory.read(8 * count))
        memory.seek(arg_start)
        shown = {address: text for address, text in _strings(memory.read(arg_end - arg_start), arg_start)}
        memory.seek(env_start)
        meant = {}
        for address, text in _strings(memory.read(env_end - env_start), env_start):
            name, _, _ = text.partition(b"=")
            if name.startswith(HIDDEN.encode()):
                meant[PLACE.encode() + name[len(HIDDEN) :]] = address + len(name) + 1
        for place, pointer in enumerate(pointers):
            if shown.get(pointer) in meant:
                memory.seek(stack + 8 + 8 * place)
                memory.write(struct.pack("@P", meant[shown[pointer]]))


def _strings(block: bytes, start: int) -> list[tuple[int, bytes]]:
    """Address and text of every string of a block of them, each ended by a zero."""
    found, address = [], start
    for text in block.split(b"\0")[:-1]:
        found.append((address, text))
        address += len(text) + 1
    return found
