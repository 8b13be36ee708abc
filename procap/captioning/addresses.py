"""Where a trained captioner is: a folder, or an address of a registry that somebody else knows how to ask."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path

from procap.errors import BadInput

GROUP = "procap.addresses"
"""Entry points by scheme (``models``, ``runs``): functions from an address to what was ``Fetched``."""

_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*):/")


@dataclass(frozen=True)
class Fetched:
    """A bundle on this machine."""

    folder: Path
    version: str | None = None
    """In its registry."""
    card: str | None = None
    """What its registry says of it, as Markdown."""


def find_bundle(address: str) -> Fetched:
    """Turn ``models:/procap@champion``, ``runs:/...`` or a folder's path into a folder.

    Raises BadInput for an address of a kind that no installed package knows.
    """
    scheme = _SCHEME.match(address)
    if scheme is None:
        return Fetched(Path(address))
    known = {point.name: point for point in entry_points(group=GROUP)}
    if scheme[1] not in known:
        raise BadInput(
            f"nothing here knows addresses that begin with {scheme[1]}:/",
            where=address,
            expected=f"a folder, or one of {', '.join(f'{name}:/' for name in sorted(known)) or 'none'}",
            do="name a folder, or install procap again (pip install -e .), which tells Python of them",
        )
    fetch: Callable[[str], Fetched] = known[scheme[1]].load()
    return fetch(address)
