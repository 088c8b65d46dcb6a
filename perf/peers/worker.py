"""The loop of a worker: one JSON object per line, requests on stdin, answers on stdout. Standard library only.

It runs in a peer's own environment: `python worker.py worker_<peer>.py OPTIONS`. That file's `load(options)` gives
operations by name. A request is {"do": name, ...arguments}; the answer {"result": ..., "seconds": ...} or
{"error": "..."}. The first line says whether the peer loaded.
"""

import ctypes
import json
import os
import runpy
import signal
import sys
import time


def serve(script, options):
    """Answer until stdin ends."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: nobody waits for the answer any more
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries print to stdout too

    def attempt(work):
        """Run, answer, and return the result; None when it failed."""
        begun = time.perf_counter()
        try:
            result, shown = work()
            answer = {"result": shown, "seconds": time.perf_counter() - begun}
        except Exception as error:
            result, answer = None, {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
        return result

    def load():
        return runpy.run_path(script)["load"](options), "loaded"

    operations = attempt(load)
    if operations is None:
        return
    for line in sys.stdin:
        request = json.loads(line)

        def work(request=request):
            result = operations[request.pop("do")](**request)
            return result, result

        attempt(work)


if __name__ == "__main__":
    serve(sys.argv[1], json.loads(sys.argv[2]))
