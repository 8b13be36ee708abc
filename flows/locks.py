"""DVC's file of locks, ``.dvc/tmp/rwlock``.

DVC rewrites it in place, so one that is killed at that moment leaves half of it, and every later one refuses to
work. It forgets holders that are gone, but not a number that another program got since.
"""

import json
from collections.abc import Iterator
from pathlib import Path

from zc.lockfile import LockError, LockFile  # what DVC guards its file with


def holders(root: Path) -> set[int] | None:
    """Processes that hold something in this workspace by DVC's file; None where the file is cut off."""
    path = _file(root)
    try:
        held = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        found = list(held.get("write", {}).values())
        found += [one for readers in held.get("read", {}).values() for one in readers]
        return {int(one["pid"]) for one in found}
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def working(root: Path) -> set[int]:
    """DVC processes that live and work in this workspace."""
    return set(_working(root.resolve()))


def wrong(root: Path) -> str | None:
    """What keeps DVC from working here though nobody does; None where all is well, or a DVC is at work."""
    held = holders(root)
    if held == set() or working(root):
        return None
    if held is None:
        return "the file of locks was cut off"
    return f"held by {', '.join(map(str, sorted(held)))}, which run no DVC here"


def clear(root: Path) -> str | None:
    """Forget what no living DVC holds; says what was wrong, if anything was."""
    if wrong(root) is None:
        return None
    path = _file(root)
    try:
        guard = LockFile(f"{path}.lock")
    except LockError:  # a DVC has just begun, and is at it this very moment
        return None
    try:
        if found := wrong(root):
            path.unlink()
        return found
    finally:
        guard.close()


def _file(root: Path) -> Path:
    return root / ".dvc" / "tmp" / "rwlock"


def _working(root: Path) -> Iterator[int]:
    import psutil

    for process in psutil.process_iter(["cmdline"]):
        if "dvc" in [Path(word).name for word in (process.info["cmdline"] or ())[:4]]:  # python -m dvc, .../bin/dvc
            try:
                here = Path(process.cwd())
            except psutil.NoSuchProcess:
                continue
            except psutil.AccessDenied:  # another user's: who knows
                yield process.pid
                continue
            if root == next((folder for folder in (here, *here.parents) if (folder / ".dvc").is_dir()), None):
                yield process.pid
