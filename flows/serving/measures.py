"""What Prometheus finds at /metrics."""

from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


class Measures:
    """Numbers of one service, in a registry of their own."""

    def __init__(self) -> None:
        of: dict[str, Any] = {"registry": CollectorRegistry()}
        self.registry = of["registry"]
        self.requests = Counter("procap_requests_total", "Answered requests", ["path", "status"], **of)
        self.seconds = Histogram(
            "procap_request_seconds", "From head to last byte of the answer", ["path"], buckets=SECONDS, **of
        )
        self.inside = Gauge("procap_requests_inside", "Requests that are read or answered now", **of)
        self.waiting = Gauge("procap_pairs_waiting", "Pairs in the queue now", **of)
        self.batch = Histogram(
            "procap_batch_pairs", "Pairs that went through the model together", buckets=(1, 2, 4, 8, 16, 32, 64), **of
        )
        self.model = Histogram("procap_batch_seconds", "Model time of a batch", buckets=SECONDS, **of)
        self.swaps = Counter("procap_model_swaps_total", "Models that took another one's place", **of)
        self.failures = Counter("procap_model_failures_total", "Models that could not take its place", **of)
        self.info = Gauge("procap_model_info", "1 for the model that answers", ["version", "digest", "captioner"], **of)
        ProcessCollector(registry=self.registry)

    def batched(self, pairs: int, seconds: float) -> None:
        """A batch went through the model."""
        self.batch.observe(pairs)
        self.model.observe(seconds)

    def serves(self, about: Any) -> None:
        """A captioner answers from now on."""
        self.info.clear()
        self.info.labels(str(about.version or ""), about.digest, about.captioner).set(1)

    def text(self) -> bytes:
        """In Prometheus' format."""
        return generate_latest(self.registry)
