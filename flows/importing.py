"""A corpus on disk becomes a tracked input: ``data/raw/<name>``, its ``.dvc`` file, and ``dataset.name``."""

import io
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from flows.presets import apply_overrides
from flows.store import QUIET
from procap.config import load_params
from procap.datasets.corpora import CORPORA
from procap.errors import BadInput
from procap.files import atomic_folder, write_text
from procap.report import Report, silent
from procap.steps.corpus import Imported, write_raw


def import_corpus(
    root: Path,
    name: str,
    folder: Path,
    *,
    limit: int | None = None,
    shares: Sequence[float] | None = None,
    skip: bool = False,
    link: bool = False,
    report: Report = silent,
) -> Imported:
    """Check the corpus in ``folder`` and make it the input of the workspace ``root``; see ``write_raw``.

    ``link``: files stay where they are, ``data/raw`` has links to them and DVC's cache no copy. Raises BadInput, and
    then ``data/raw``, ``params.yaml`` and the ``.dvc`` file are as they were.
    """
    params, target = load_params(root / "params.yaml"), root / "data" / "raw" / name
    folder = folder.absolute()
    if not (root / ".dvc").is_dir():
        raise BadInput(
            "no DVC here", where=str(root), expected="the project's folder", do="run it there, or `dvc init`"
        )
    if not folder.is_dir():
        raise BadInput(
            "there is no such folder",
            where=str(folder),
            expected=CORPORA[name].title,
            do=f"name the folder that the corpus is in; `procap import {name} --help` shows its files",
        )
    if (
        target.resolve() in (folder.resolve(), *folder.resolve().parents)
        or folder.resolve() in target.resolve().parents
    ):
        raise BadInput(
            "the corpus lies where it would be written",
            where=str(folder),
            expected=f"a folder that is not {target} and has nothing to do with it",
            do="move it elsewhere first",
        )
    with atomic_folder(target) as fresh:
        done = write_raw(
            CORPORA[name],
            folder,
            fresh,
            limit=limit,
            shares=shares,
            seed=params.seed,
            skip=skip,
            place=_link if link else shutil.copyfile,
            report=report,
        )
        apply_overrides(root / "params.yaml", {"dataset.name": name})
    _track(root, target.relative_to(root), copy=not link)
    return done


def _link(source: Path, target: Path) -> None:
    """A second name for the file, or, on another disk, a link that leads to it."""
    try:
        os.link(source.resolve(), target)
    except OSError:
        target.symlink_to(source.resolve())


def _track(root: Path, target: Path, copy: bool) -> None:
    """``dvc add``; without ``copy`` DVC knows the digests, and its cache never gets the files."""
    (root / f"{target}.dvc").unlink(missing_ok=True)  # what it says of the cache would outlive `dvc add`
    words = [sys.executable, "-m", "dvc", "add", "--quiet", *([] if copy else ["--no-commit"]), target.as_posix()]
    done = subprocess.run(words, cwd=root, env=os.environ | QUIET, capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr.strip() or "no message").splitlines()[-1]
        raise BadInput(
            f"the corpus is there, but DVC does not track it: {last}",
            where=str(root / target),
            expected=f"{target}.dvc",
            do=f"run `dvc add {target}`, which says more",
        )
    if not copy:
        from ruamel.yaml import YAML

        path, yaml = root / f"{target}.dvc", YAML()
        content = yaml.load(path.read_text(encoding="utf-8"))
        content["outs"][0]["cache"] = False  # `dvc repro` would commit it else
        text = io.StringIO()
        yaml.dump(content, text)
        write_text(path, text.getvalue())
