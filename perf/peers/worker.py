"""The loop of a worker: one JSON object per line, requests on stdin, answers on stdout. Standard library only.

It runs in a peer's own environment, beside one `worker_<peer>.py`. A request is {"do": name, ...arguments};
the answer {"result": ..., "seconds": ...} or {"error": "..."}. The first line says whether the peer loaded.
"""

import ctypes
import json
import os
import signal
import sys
import time


def serve(load):
    """Answer until stdin ends. `load(options)` -> operations by name; the options are the argument, as JSON."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: nobody waits for the answer any more
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries print to stdout too

    def say(answer):
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    def attempt(work):
        begun = time.perf_counter()
        try:
            result = work()
        except Exception as error:
            say({"error": f"{type(error).__name__}: {error}"})
            return None
        seconds = time.perf_counter() - begun
        return result, seconds

    loaded = attempt(lambda: load(json.loads(sys.argv[1])))
    if loaded is None:
        return
    say({"result": "loaded", "seconds": loaded[1]})
    for line in sys.stdin:
        request = json.loads(line)
        operation = loaded[0][request.pop("do")]
        done = attempt(lambda operation=operation, request=request: operation(**request))
        if done:
            say({"result": done[0], "seconds": done[1]})
