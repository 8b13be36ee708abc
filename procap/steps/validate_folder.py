"""A corpus held against its rules without the pipeline: what ``procap validate`` does. No step of its own."""

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from procap.config import Params
from procap.datasets import raw
from procap.datasets.corpora import CORPORA
from procap.datasets.pairs import COLUMNS
from procap.errors import BadInput
from procap.evaluation.quality import Finding
from procap.report import Report, silent
from procap.steps.corpus import read_corpus, write_raw
from procap.steps.prepare import pairs_on_disk, write_pairs
from procap.steps.validate import examine, left_out


@dataclass(frozen=True)
class Examined:
    """What became of a folder."""

    corpus: str
    findings: Sequence[Finding]
    left_out: Mapping[str, int]
    """Sentences and pairs by reason."""
    warnings: Sequence[str]
    """What the import says of it."""


def validate_folder(
    params: Params,
    folder: Path,
    target: Path,
    *,
    corpus: str | None = None,
    shares: Sequence[float] | None = None,
    report: Report = silent,
) -> Examined:
    """Write to ``target`` what the step ``validate`` writes. The folder stays as it is.

    ``folder`` has a corpus as published, as imported, or as ``prepare`` writes it; ``shares`` draws splits anew.
    Raises BadInput where it has none that can be read.
    """
    if not folder.is_dir():
        raise BadInput("there is no such folder", where=str(folder), expected="a folder with a corpus", do="mend it")
    if (folder / "pairs.parquet").exists():
        name = corpus or ("rendered" if (folder / "scenes.jsonl").exists() else "table")
        cleaned = left_out(folder, folder)
        return Examined(name, examine(params, name, folder, target, cleaned, report=report), cleaned, ())
    name = corpus or which_corpus(folder)
    with tempfile.TemporaryDirectory() as temporary:
        imported, prepared = Path(temporary) / "raw", Path(temporary) / "prepare"
        imported.mkdir()
        done = write_raw(
            CORPORA[name],
            folder.absolute(),
            imported,
            shares=shares,
            seed=params.seed,
            skip=True,
            place=os.symlink,
            report=report,
        )
        _prepare(params, name, imported, prepared, report)
        cleaned = left_out(folder, prepared) | dict(done.left_out)
        return Examined(name, examine(params, name, prepared, target, cleaned, report=report), cleaned, done.warnings)


def which_corpus(folder: Path) -> str:
    """The name of the corpus that a folder has, told by its files. Raises BadInput where none can be read."""
    if (folder / raw.SUMMARY).exists():
        return str(json.loads((folder / raw.SUMMARY).read_text(encoding="utf-8"))["corpus"])
    masks = {}
    for name in CORPORA:
        try:
            masks[name] = sum(pair.mask is not None for pair in read_corpus(folder, name).pairs)
        except BadInput:
            continue
    if not masks:
        raise BadInput(
            "this is no corpus that can be told by its files",
            where=str(folder),
            expected=f"the files of {', '.join(CORPORA)}",
            do="name it with --corpus, which says what is missing",
        )
    return max(masks, key=lambda name: (not CORPORA[name].own, masks[name]))


def _prepare(params: Params, name: str, imported: Path, prepared: Path, report: Report) -> None:
    """Table and shards as ``prepare`` writes them; splits may be empty."""
    import pandas as pd

    dataset = params.dataset.model_copy(update={"name": name})
    whole = params.prepare.model_copy(update={"limit": None})
    asked = params.model_copy(update={"dataset": dataset, "prepare": whole})
    rows, _ = write_pairs(pairs_on_disk(imported, asked, [], report), prepared)
    pd.DataFrame(rows, columns=list(COLUMNS)).to_parquet(prepared / "pairs.parquet", index=False)
