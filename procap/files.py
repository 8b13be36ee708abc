"""Files and folders that are there whole or not at all, and what they contain in one short digest."""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def replacing(target: Path, *, durable: bool = False) -> Iterator[Path]:
    """A file to write, which takes ``target``'s place when the block ends well; otherwise nothing of it stays.

    ``durable``: it is on the disk, not only in memory, before it takes that place, and so is its name afterwards.
    A failure to write names ``target``.
    """
    partial = target.with_name(f"{target.name}.{os.getpid()}.partial")
    try:
        with named(target):
            yield partial
            if durable:
                flush(partial)
            partial.replace(target)
            if durable:
                flush(target.parent)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


@contextmanager
def named(target: Path) -> Iterator[None]:
    """An error of the system that names no file names ``target``."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(target)
        raise


def flush(path: Path) -> None:
    """Wait until a file's bytes, or a folder's names, are on the disk."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def write_text(path: Path, text: str) -> None:
    """Write a text file so that a reader never sees half of it; folders above it are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf-8", newline="\n")


def write_json(path: Path, value: Any) -> None:
    """Write JSON whose bytes depend on the value alone: sorted keys, indented, a newline at the end."""
    write_text(path, json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n")


@contextmanager
def atomic_folder(target: Path) -> Iterator[Path]:
    """A fresh folder to write in, which takes ``target``'s place when the block ends well.

    After an exception the earlier ``target``, if any, is still there and the new folder is gone; so is what a
    killed process left.
    """
    fresh, former = (target.with_name(f"{target.name}.{os.getpid()}.{what}") for what in ("partial", "former"))
    for leftover in target.parent.glob(f"{target.name}.*.*"):
        if leftover.suffix in (".partial", ".former") and not _other_lives(leftover):
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


def _other_lives(leftover: Path) -> bool:
    """Whether a process with the number in this name, and not this one, is at work."""
    number = leftover.name.split(".")[-2]
    if not number.isdigit() or int(number) == os.getpid():
        return False
    try:
        os.kill(int(number), 0)
    except ProcessLookupError:
        return False
    except OSError:  # somebody else's
        return True
    return True


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
