"""procap: two similar images in, one sentence out that says what changed and how."""

from importlib import import_module
from os import PathLike
from typing import Any

__all__ = ("load_captioner",)


def load_captioner(address: "str | PathLike[str]", device: str = "auto") -> Any:
    """A trained captioner: ``load_captioner("models:/procap@champion").caption("before.png", "after.png").text``.

    See ``procap.captioning.captioner.load_captioner``; importing ``procap`` alone stays instant.
    """
    return import_module("procap.captioning.captioner").load_captioner(address, device)
