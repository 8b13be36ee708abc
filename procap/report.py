"""How a step tells numbers, pictures and progress to whoever listens.

A step never knows who that is: the terminal, MLflow, Prefect, or nobody (``silent``).
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

T = TypeVar("T")


@runtime_checkable
class Report(Protocol):
    """What a step may say while it runs. No call changes what the step computes; only ``model`` may raise."""

    def metrics(self, values: Mapping[str, float], step: int | None = None) -> None:
        """Numbers to keep; ``step`` counts updates of a training."""

    def now(self, values: Mapping[str, float]) -> None:
        """Numbers of this moment for whoever watches; nobody keeps them."""

    def picture(self, name: str, image: Any) -> None:
        """A picture to look at: a PIL image or a matplotlib figure; ``name`` is a file name ending in .png."""

    def artifact(self, path: Path) -> None:
        """A file or folder that the step wrote and that is worth keeping beside its numbers."""

    def note(self, text: str) -> None:
        """One line for a reader."""

    def progress(self, items: Iterable[T], what: str, total: int | None = None, done: int = 0) -> Iterator[T]:
        """Pass ``items`` through while showing how far they are; ``done`` of ``total`` were there before."""

    def model(self, bundle: Path, tags: Mapping[str, str], alias: str | None) -> dict[str, Any] | None:
        """Offer a bundle to the registry; None where nobody keeps one, else its name, version and alias.

        Raises where the bundle cannot be loaded back; no alias moves then.
        """


class Silent:
    """Nobody listens."""

    def metrics(self, values: Mapping[str, float], step: int | None = None) -> None:
        pass

    def now(self, values: Mapping[str, float]) -> None:
        pass

    def picture(self, name: str, image: Any) -> None:
        pass

    def artifact(self, path: Path) -> None:
        pass

    def note(self, text: str) -> None:
        pass

    def progress(self, items: Iterable[T], what: str, total: int | None = None, done: int = 0) -> Iterator[T]:
        yield from items

    def model(self, bundle: Path, tags: Mapping[str, str], alias: str | None) -> dict[str, Any] | None:
        return None


silent: Report = Silent()
