"""Splits that do not leak: pairs that share a picture stay together, whatever the picture is called."""

from collections.abc import Hashable, Iterable, Mapping, Sequence

import numpy as np

from procap.datasets.corpus import SPLITS
from procap.errors import BadInput


def connect(keys: Sequence[Iterable[Hashable]]) -> list[int]:
    """For every item the first one that it hangs together with, over any number of shared keys."""
    above = list(range(len(keys)))

    def top(item: int) -> int:
        while above[item] != item:
            above[item] = above[above[item]]
            item = above[item]
        return item

    owner: dict[Hashable, int] = {}
    for item, shared in enumerate(keys):
        for key in shared:
            one, other = sorted((top(owner.setdefault(key, item)), top(item)))
            above[other] = one
    return [top(item) for item in range(len(keys))]


def draw_splits(sizes: Mapping[str, int], shares: Sequence[float], seed: int) -> dict[str, str]:
    """A split for every group; ``sizes`` counts their pairs, ``shares`` are those of train, val and test.

    Large groups first, in random order among equals, each into the split that is furthest from its share; a split
    with a share gets at least one group. The same arguments give the same splits. Raises BadInput.
    """
    wanted = [number for number, share in enumerate(shares) if share > 0]
    if len(sizes) < len(wanted):
        raise BadInput(
            f"{len(sizes)} groups of pairs without a picture in common cannot fill {len(wanted)} splits",
            where="the pairs, of which those that share a picture stay in one split",
            expected="a group for each of " + ", ".join(SPLITS[number] for number in wanted),
            do="add pairs of other pictures",
        )
    names = sorted(sizes)
    np.random.default_rng(seed).shuffle(names)
    names.sort(key=lambda name: -sizes[name])
    room = np.array(shares, float) * sum(sizes.values())
    found, empty = {}, set(wanted)
    for left, name in zip(range(len(names), 0, -1), names, strict=True):
        choice = sorted(empty) if left <= len(empty) else wanted
        split = max(choice, key=lambda number: room[number])
        found[name] = SPLITS[split]
        room[split] -= sizes[name]
        empty.discard(split)
    return found
