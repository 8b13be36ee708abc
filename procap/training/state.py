"""Where a step that was killed finds what it had done: ``.state/<step>/<digest>/`` beside ``data/``."""

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import procap
from procap.files import file_digest, folder_digest


def state_folder(data: Path, step: str, config: Mapping[str, Any], inputs: Sequence[Path]) -> Path:
    """The folder in which this very work keeps its state; made, if it is not there.

    Its name is a digest of ``config`` (anything JSON can say), of the bytes of ``inputs`` (files or folders) and
    of the sources of this package: whatever changes, the step starts anew, and what earlier attempts left is
    removed. A step that runs once per captioner passes ``caption/procap``.
    """
    name = _digest(data, config, inputs)
    step_folder = data.resolve().parent / ".state" / step
    folder = step_folder / name
    folder.mkdir(parents=True, exist_ok=True)
    for other in step_folder.iterdir():
        if other != folder:
            shutil.rmtree(other, ignore_errors=True)  # another process of the team may be quicker
    return folder


def discard_state(folder: Path) -> None:
    """Forget the state of a step that is done."""
    shutil.rmtree(folder, ignore_errors=True)


def _digest(data: Path, config: Mapping[str, Any], inputs: Sequence[Path]) -> str:
    known = {
        "config": config,
        "inputs": sorted(
            [
                path.relative_to(data).as_posix() if path.is_relative_to(data) else path.name,
                folder_digest(path) if path.is_dir() else file_digest(path),
            ]
            for path in inputs
        ),
        "sources": _sources_digest(),
    }
    return hashlib.sha256(json.dumps(known, sort_keys=True, allow_nan=False).encode()).hexdigest()[:24]


def _sources_digest() -> str:
    root = Path(procap.__file__).parent
    total = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        total.update(f"{path.relative_to(root).as_posix()}\0{file_digest(path)}\n".encode())
    return total.hexdigest()
