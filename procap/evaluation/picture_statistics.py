"""What pictures look like, in a few numbers each: to find doubles under other bytes, and splits that differ."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int, UInt8, UInt64

SIDE = 16
"""Of a thumbnail."""
BINS = 8
"""Of a channel's histogram."""
FEATURES = (
    *(f"{channel} {what}" for what in ("mean", "contrast") for channel in ("red", "green", "blue")),
    *(
        f"share of {channel} in {256 // BINS * bin}..{256 // BINS * (bin + 1) - 1}"
        for channel in ("red", "green", "blue")
        for bin in range(BINS)
    ),
)
CERTAIN = 3.0
"""Standard errors that a difference of two splits is made smaller by, so that small splits do not differ by chance."""
AT_ONCE = 2**22
"""Comparisons of hashes in memory."""
_READ = 256


@dataclass(frozen=True)
class Looks:
    """One row per picture."""

    thumbnails: UInt8[np.ndarray, "n 16 16 3"]
    features: Float[np.ndarray, "n f"]
    """FEATURES of the pixels in [0, 1]."""

    @property
    def hashes(self) -> UInt64[np.ndarray, " n"]:
        """64 bits each: which of the 8 x 8 lowest cosine frequencies of its gray thumbnail exceed their median."""
        places = np.pi * (2 * np.arange(SIDE) + 1) / (2 * SIDE)
        waves = np.cos(np.arange(8)[:, None] * places)
        gray = self.thumbnails @ np.array([0.299, 0.587, 0.114])
        spectrum = (waves @ gray @ waves.T).reshape(-1, 64)
        bits = spectrum > np.median(spectrum[:, 1:], axis=1, keepdims=True)  # the first is the brightness
        return np.packbits(bits, axis=1).view(np.uint64)[:, 0]


def looks(shards: Sequence[UInt8[np.ndarray, "_ _ _ 3"]]) -> Looks:
    """Of all pictures of the shards, in order; each at least SIDE pixels high and wide."""
    thumbnails, features = [], []
    for shard in shards:
        for start in range(0, len(shard), _READ):
            pixels = np.asarray(shard[start : start + _READ])
            thumbnails.append(_small(pixels))
            features.append(_features(pixels))
    return Looks(np.concatenate(thumbnails), np.concatenate(features))


def _small(pixels: np.ndarray) -> np.ndarray:
    """Means over SIDE x SIDE fields."""
    sums = pixels.astype(np.float32)
    for axis in (1, 2):
        edges = np.arange(SIDE) * pixels.shape[axis] // SIDE
        widths = np.diff(edges, append=pixels.shape[axis]).reshape(-1, *[1] * (3 - axis))
        sums = np.add.reduceat(sums, edges, axis=axis) / widths
    return np.rint(sums).astype(np.uint8)


def _features(pixels: np.ndarray) -> np.ndarray:
    values = pixels.reshape(len(pixels), -1, 3)
    levels = values // (256 // BINS)
    shares = [(levels == level).mean(axis=1) for level in range(BINS)]
    moments = [values.mean(axis=1) / 255, values.std(axis=1) / 255]
    return np.concatenate([*moments, np.stack(shares, axis=2).reshape(len(pixels), -1)], axis=1)


def doubles(seen: Looks, homes: Int[np.ndarray, " n"], bits: int, difference: float) -> Int[np.ndarray, " n"]:
    """For each picture one of another home (``homes`` numbers them) that looks the same, or -1.

    The same: hashes differ in at most ``bits`` bits, and thumbnails on average by ``difference`` of 255 at most.
    """
    found = np.full(len(homes), -1)
    small = seen.thumbnails.reshape(len(homes), -1).astype(np.int16)
    for one, other in _within(seen.hashes, homes, bits):
        for start in range(0, len(one), _READ):
            a, b = one[start : start + _READ], other[start : start + _READ]
            alike = np.abs(small[a] - small[b]).mean(axis=1) <= difference
            found[a[alike]], found[b[alike]] = b[alike], a[alike]
    return found


def _within(hashes: np.ndarray, homes: np.ndarray, bits: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Numbers of pictures of different homes whose hashes differ in at most ``bits`` bits, some pairs repeatedly.

    Of bits + 1 parts of such hashes one at least is equal, so only pictures with an equal part are compared.
    """
    for part in np.array_split(np.arange(64, dtype=np.uint64), bits + 1):
        keys = (hashes >> part[0]) & np.uint64(2 ** len(part) - 1)
        for home in np.unique(homes)[:-1]:
            here, there = np.flatnonzero(homes == home), np.flatnonzero(homes > home)
            there = there[np.argsort(keys[there], kind="stable")]
            first, last = (np.searchsorted(keys[there], keys[here], side) for side in ("left", "right"))
            ends = np.cumsum(last - first)
            for block in np.split(np.arange(len(here)), np.flatnonzero(np.diff(ends // AT_ONCE)) + 1):
                counts = (last - first)[block]
                skipped = np.cumsum(counts) - counts
                one = np.repeat(here[block], counts)
                other = there[np.arange(len(one)) + np.repeat(first[block] - skipped, counts)]
                near = np.bitwise_count(hashes[one] ^ hashes[other]) <= bits
                yield one[near], other[near]


@dataclass(frozen=True)
class Drift:
    """How far the means of some pictures are from those of others, feature by feature. Our formulation."""

    means: Float[np.ndarray, " f"]
    base: Float[np.ndarray, " f"]
    """Means of the others."""
    spread: Float[np.ndarray, " f"]
    """Standard deviation of a picture, 1/255 at least."""
    chance: float
    """CERTAIN standard errors of the difference, in standard deviations of a picture."""

    @property
    def distances(self) -> Float[np.ndarray, " f"]:
        """In standard deviations, less what chance explains; 0 where it explains all."""
        return np.maximum(0.0, np.abs(self.means - self.base) / self.spread - self.chance)

    def bounds(self, most: float) -> tuple[Float[np.ndarray, " f"], Float[np.ndarray, " f"]]:
        """Between which means the distance is ``most`` or less."""
        room = (most + self.chance) * self.spread
        return self.base - room, self.base + room


def drift(features: Float[np.ndarray, "n f"], of: Bool[np.ndarray, " n"], base: Bool[np.ndarray, " n"]) -> Drift:
    """Compare the pictures ``of`` with those of ``base``."""
    one, other = features[of], features[base]
    spread = np.sqrt((len(one) * one.var(axis=0) + len(other) * other.var(axis=0)) / (len(one) + len(other)))
    chance = CERTAIN * math.sqrt(1 / len(one) + 1 / len(other))
    return Drift(one.mean(axis=0), other.mean(axis=0), np.maximum(spread, 1 / 255), chance)
