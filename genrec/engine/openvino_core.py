"""OpenVINO's way into its plugins, without what its plugin for CPUs does to signals."""

from __future__ import annotations

import ctypes

from genrec.engine.quiet_openvino import ov

_LIBC = ctypes.CDLL(None)


class SignalStack(ctypes.Structure):
    """`stack_t` of <signal.h>: where a thread's signal handlers run, unless it is off."""

    _fields_ = (("address", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))

    @classmethod
    def of_this_thread(cls) -> SignalStack:
        """As the kernel has it now."""
        found = cls()
        _LIBC.sigaltstack(None, ctypes.byref(found))
        return found

    def use(self) -> None:
        """From now on, by this thread. One that is too small for the CPU's registers is refused: then all stays."""
        _LIBC.sigaltstack(ctypes.byref(self), None)


def new_core() -> ov.Core:
    """A core whose plugin is loaded, with the signal stack of this thread as it was before.

    The plugin has one of its own, which goes with it; then the one from before comes back. Where two plugins end in the
    order in which they began, the second brings back the first one's, which is gone: Python's handlers run there, so
    the next Ctrl-C was a segmentation fault.
    """
    before = SignalStack.of_this_thread()
    core = ov.Core()
    core.get_versions("CPU")
    before.use()
    return core
