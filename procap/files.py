"""Files and folders that are there whole or not at all, and what they contain in one short digest."""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def write_text(path: Path, text: str) -> None:
    """Write a text file so that a reader never sees half of it; folders above it are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    partial.write_text(text, encoding="utf-8", newline="\n")
    partial.replace(path)


def write_json(path: Path, value: Any) -> None:
    """Write JSON whose bytes depend on the value alone: sorted keys, indented, a newline at the end."""
    write_text(path, json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n")


@contextmanager
def atomic_folder(target: Path) -> Iterator[Path]:
    """A fresh folder to write in, which takes ``target``'s place when the block ends well.

    After an exception the earlier ``target``, if any, is still there and the new folder is gone.
    """
    fresh, former = (target.with_name(f"{target.name}.{os.getpid()}.{what}") for what in ("partial", "former"))
    for leftover in (fresh, former):
        shutil.rmtree(leftover, ignore_errors=True)
    fresh.mkdir(parents=True)
    try:
        yield fresh
        if target.exists():
            target.rename(former)
        fresh.rename(target)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        if former.exists() and not target.exists():
            former.rename(target)
        raise
    shutil.rmtree(former, ignore_errors=True)


def file_digest(path: Path) -> str:
    """sha256 of a file's bytes, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def folder_digest(folder: Path) -> str:
    """sha256 over the names and bytes of all files below a folder, in hex; times and owners play no part."""
    total = hashlib.sha256()
    for path in sorted((p for p in folder.rglob("*") if p.is_file()), key=lambda p: p.relative_to(folder).as_posix()):
        total.update(f"{path.relative_to(folder).as_posix()}\0{file_digest(path)}\n".encode())
    return total.hexdigest()


def publish(folder: Path, target: Path) -> None:
    """Move a finished folder to where its readers look for it; what stood there before is removed."""
    shutil.rmtree(target, ignore_errors=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(folder, target)
