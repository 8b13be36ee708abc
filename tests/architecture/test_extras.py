"""What a message or a page tells people to install exists."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
EXTRAS = set(tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"])
NAMED = re.compile(r"(?:procap|\.)\[([a-z0-9_,-]+)\]")


def named(text: str) -> set[str]:
    return {extra for found in NAMED.findall(text) for extra in found.split(",")}


def test_every_extra_that_is_named_is_there():
    files = [*ROOT.glob("*.md"), ROOT / "Makefile", *(ROOT / "docs").rglob("*.md")]
    files += [path for folder in ("procap", "flows", "tests") for path in (ROOT / folder).rglob("*.py")]
    told = {path: named(path.read_text(encoding="utf-8")) for path in files if path != Path(__file__)}
    assert {"browser", "h5"} <= set().union(*told.values()), "the search finds them"
    assert not {path: extras - EXTRAS for path, extras in told.items() if extras - EXTRAS}
