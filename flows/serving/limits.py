"""What the service takes at most, and for how long it waits."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Sizes and times of the HTTP service."""

    body: int = 32_000_000
    """Bytes of a request."""
    pixels: int = 16_000_000
    """Of one picture; asked of its header, before anything is decoded."""
    pairs: int = 32
    """Of one request."""
    explained: int = 8
    """Pairs of a request that asks for explanations, whose answers are larger."""
    queue: int = 128
    """Pairs that wait for the model."""
    requests: int = 64
    """At once, read or answered."""
    arrival: float = 20.0
    """Seconds in which a request's head, and then its body, must be there."""
    answer: float = 30.0
    """Seconds from a request's last byte to its answer."""
