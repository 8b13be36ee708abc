"""Git worktrees of this project in which other parameters or an earlier commit are run, on the same data."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flows.watching import elsewhere
from procap.steps import STEPS


def check_out(root: Path, folder: Path, commit: str) -> None:
    """Put a commit into the worktree ``folder``, which is made where it is not there; ignored files stay."""
    if (folder / ".git").exists():
        words = ["-C", str(folder), "checkout", "--quiet", "--detach", "--force", commit]
    else:
        shutil.rmtree(folder, ignore_errors=True)
        words = ["-C", str(root), "worktree", "add", "--quiet", "--detach", "--force", str(folder), commit]
    subprocess.run(["git", "-c", f"core.hooksPath={os.devnull}", *words], check=True)


def remove(root: Path, folder: Path) -> None:
    """Take a worktree away with all that is in it."""
    subprocess.run(["git", "-C", str(root), "worktree", "remove", "--force", str(folder)], capture_output=True)
    shutil.rmtree(folder, ignore_errors=True)


def share_cache(root: Path, folder: Path, cache: Path) -> None:
    """Let DVC in the worktree use ``cache``, with the remotes and whatever else is set in this workspace alone."""
    from configobj import ConfigObj  # the form of DVC's own files

    settings = ConfigObj()
    if (root / ".dvc" / "config.local").exists():
        settings.merge(ConfigObj(str(root / ".dvc" / "config.local")))
    settings.setdefault("cache", {})["dir"] = str(cache)
    settings.filename = str(folder / ".dvc" / "config.local")
    settings.write()


def bring_corpus(root: Path, folder: Path, corpus: Path) -> None:
    """Have ``data/raw/<corpus>`` in the worktree too: from DVC's cache, or as a link."""
    if (folder / f"{corpus}.dvc").exists():
        subprocess.run([sys.executable, "-m", "dvc", "checkout", "--quiet", f"{corpus}.dvc"], cwd=folder, check=True)
    elif (root / corpus).exists() and not (folder / corpus).exists():
        (folder / corpus).parent.mkdir(parents=True, exist_ok=True)
        (folder / corpus).symlink_to((root / corpus).resolve())


def bring_files(root: Path, folder: Path, params: Mapping[str, Any]) -> None:
    """Link what the parameters name by a path within the workspace, where git did not bring it."""
    for step in STEPS:
        for path in elsewhere(root, step, params).values():
            if not (folder / path).exists():
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                (folder / path).symlink_to((root / path).resolve())


def cache_folder(root: Path) -> Path:
    """Where DVC keeps content in this workspace."""
    words = [sys.executable, "-m", "dvc", "cache", "dir"]
    told = subprocess.run(words, cwd=root, capture_output=True, text=True, check=True)
    return root.resolve() / told.stdout.strip()
