"""Triton's own statistics of a server: how often each model ran, and how long in queue, copies and compute."""

from __future__ import annotations

import time

import tritonclient.grpc

from clients.recommender import Recommender
from clients.wire import channel_to, check_url
from genrec.errors import GenrecError
from perf.kit import endpoints

Seen = dict[str, dict[str, int]]  # model -> statistic -> count or ns
COUNTED_S = 5.0  # in which what was answered is counted
# Of a server that is counted: its supervisor's probes are requests too, of some of the models.
PROBE_EVERY_S = 3600.0


class Triton:
    """One server and a client, with Triton's statistics."""

    def __init__(self, server: endpoints.Endpoint) -> None:
        self.ensemble = server.ensemble
        self.recommender = Recommender(server.grpc_url, model=self.ensemble)
        channel = channel_to(check_url(server.grpc_url)[0])
        self._statistics = tritonclient.grpc.InferenceServerClient(server.grpc_url, channel_args=channel)
        self._headers = server.headers

    def statistics(self) -> Seen:
        """Cumulative counts and ns per model. Raises GenrecError when they are restricted."""
        try:
            answer = self._statistics.get_inference_statistics(headers=self._headers)
        except tritonclient.grpc.InferenceServerException as error:
            raise GenrecError(f"no statistics from the server: {error}") from error
        seen: Seen = {}
        for model in answer.model_stats:
            s = model.inference_stats
            seen[model.name] = {
                "calls": s.success.count,
                "success": s.success.ns,
                "queue": s.queue.ns,
                "input": s.compute_input.ns,
                "infer": s.compute_infer.ns,
                "output": s.compute_output.ns,
            }
        return seen

    def settled(self, before: Seen, requests: int) -> Seen:
        """The statistics once they hold `requests` more than `before`: Triton counts after it has answered."""
        end = time.monotonic() + COUNTED_S
        while True:
            now = self.statistics()
            counted = spent(before, now)
            # The ensemble is counted last, but a model's share may still be on its way: each of its models was
            # called so many times per request, those of another ensemble never.
            whole = all(model["calls"] % requests == 0 for model in counted.values())
            answered = counted.get(self.ensemble, {}).get("calls", 0) >= requests
            if (answered and whole) or time.monotonic() > end:
                return now
            time.sleep(0.01)

    def close(self) -> None:
        """Close both connections."""
        self.recommender.close()
        self._statistics.close()


def spent(before: Seen, after: Seen) -> Seen:
    """What was added between two readings."""
    return {
        model: {key: value - before.get(model, {}).get(key, 0) for key, value in figures.items()}
        for model, figures in after.items()
    }
