"""Comparing evaluated captioners, or the rows of an ablation: read, compare, write, and log to the table's run."""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from flows.results import read_result
from flows.store import answering, connect
from flows.tables import HOME
from flows.tracking import LONGEST_TAG
from procap.errors import BadInput
from procap.evaluation.comparison import Comparison, System, compare, telling_pairs
from procap.evaluation.comparison_page import Curve, Shown, markdown, page, rows
from procap.evaluation.scores import flat
from procap.files import write_text

EXAMPLES = 12


@dataclass(frozen=True)
class Contender:
    """A system and the folders of its results, ``data/evaluate/<captioner>``, one per training."""

    system: System
    folders: tuple[Path, ...]


@dataclass(frozen=True)
class Written:
    """What a comparison found and where it lies."""

    comparison: Comparison
    base: str
    missing: tuple[str, ...]
    page: Path


def compare_table(root: Path, name: str, base: str | None = None) -> Written:
    """Compare the rows of a table that are finished; ``results.csv`` has a line per row and seed.

    Raises BadInput where fewer than one row is finished.
    """
    home = root / HOME / name
    if not (home / "grid.json").exists():
        raise BadInput(
            f"the table {name} was not run here", where=str(home), expected="its results", do=f"`procap ablate {name}`"
        )
    grid = read_result(home / "grid.json")
    contenders, missing, runs = [], [], []
    lines: list[dict[str, Any]] = []
    for row in grid["rows"]:
        folders = []
        for job in row["jobs"]:
            folder = root / job["folder"] / "data" / "evaluate" / row["captioner"]
            record = (root / job["folder"]).with_name(f"{job['replicate']}.json")
            known = read_result(record) if record.exists() else {}
            if known.get("digest") != job["digest"]:
                missing.append(f"{row['name']} / {job['replicate']}")
                continue
            runs.append(known["run"])
            folders.append(folder)
            numbers = flat(read_result(folder / "metrics.json"))
            place = (folder / "predictions.json").relative_to(root).as_posix()
            lines.append({"row": row["name"], "replicate": job["replicate"], **numbers, "predictions": place})
        if folders:
            contenders.append(_contender(row["name"], folders, row["paper"]))
    if not contenders:
        raise BadInput(
            f"no row of the table {name} is finished",
            where=str(home),
            expected="at least one",
            do=f"`procap ablate {name}`, and look at the logs beside the rows' folders",
        )
    names = [one.system.name for one in contenders]
    base = base or (grid["base"] if grid["base"] in names else names[0])
    columns = [*dict.fromkeys(key for line in lines for key in line if key != "predictions"), "predictions"]
    write_text(home / "results.csv", _csv([columns, *([line.get(column) for column in columns] for line in lines)]))
    written = _write(home, f"Ablation: {name}", grid["about"], contenders, base, missing)
    client = connect(root)
    text = (home / "comparison.md").read_text(encoding="utf-8")
    with answering(root):
        for file in ("results.csv", "comparison.csv", "comparison.md", "comparison.html"):
            client.log_artifact(grid["run"], str(home / file))
        experiment = client.get_run(grid["run"]).info.experiment_id
        client.set_tag(grid["run"], "mlflow.note.content", _note(name, text, runs, experiment))
    return written


def _note(table: str, text: str, runs: Sequence[str], experiment: str) -> str:
    """What the table's run says of itself on its page: the comparison, and links to its rows' runs."""
    ids, of = quote(json.dumps(list(runs), separators=(",", ":"))), quote(json.dumps([experiment]))
    rows = quote(f"tags.`procap.table` = '{table}' AND tags.`procap.row` != ''")
    links = (
        f"[Charts of the rows](#/experiments/{experiment}/runs?searchFilter={rows}&compareRunsMode=CHART), "
        f"[rows side by side](#/compare-runs?runs={ids}&experiments={of})"
    )
    body = links + "\n\n" + text.partition("\n\n")[2]
    return body if len(body) <= LONGEST_TAG else body[: body.rindex("\n", 0, LONGEST_TAG)]


def compare_paths(paths: Sequence[Path], target: Path, base: str | None = None) -> Written:
    """Compare ``data/evaluate/<captioner>`` folders (or ``predictions.json`` in them); the first is the base."""
    folders = [path.parent if path.name == "predictions.json" else path for path in paths]
    contenders = [_contender(name, [folder], {}) for name, folder in zip(_names(folders), folders, strict=True)]
    return _write(target, "Comparison", "", contenders, base or contenders[0].system.name, [])


def _names(folders: Sequence[Path]) -> list[str]:
    """The captioners' names; whole paths where these are not different."""
    short = [folder.resolve().name for folder in folders]
    names = short if len(set(short)) == len(short) else [folder.as_posix() for folder in folders]
    if len(set(names)) < len(names):
        raise BadInput("a result is named twice", where=", ".join(names), expected="different ones", do="leave one out")
    return names


def _contender(name: str, folders: Sequence[Path], paper: Mapping[str, float]) -> Contender:
    predictions = [read_result(folder / "predictions.json") for folder in folders]
    return Contender(System(name, predictions, [read_result(folder / "metrics.json") for folder in folders], paper),
                     tuple(folders))  # fmt: skip


def _write(
    target: Path, title: str, about: str, contenders: Sequence[Contender], base: str, missing: Sequence[str]
) -> Written:
    systems = [one.system for one in contenders]
    names = [system.name for system in systems]
    if base not in names:
        raise BadInput(f"nothing is called '{base}'", where="--base", expected="one of " + ", ".join(names), do="mend")
    comparison = compare(systems, base)
    curves = {one.system.name: [curve for folder in one.folders if (curve := _curve(folder))] for one in contenders}
    write_text(target / "comparison.md", markdown(title, about, comparison, base, missing))
    write_text(target / "comparison.csv", _csv(rows(comparison)))
    examples = _examples(contenders)
    write_text(
        target / "comparison.html", page(title, about, systems, comparison, base, curves, examples, missing)
    )
    return Written(comparison, base, tuple(missing), target / "comparison.html")


def _curve(folder: Path) -> Curve:
    """CIDEr on the validation split over the updates, where the training's history is still beside the results."""
    path = folder.parents[1] / "caption" / folder.name / "history.csv"
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return [
            (int(row["step"]), float(row["value"]))
            for row in csv.DictReader(file)
            if row["split"] == "val" and row["name"] == "CIDEr"
        ]


def _examples(contenders: Sequence[Contender]) -> list[Shown]:
    """Pairs on which the systems differ most, with their pictures where the first one's corpus is still there."""
    from procap.datasets.pairs import Pairs

    prepared = contenders[0].folders[0].parents[1] / "prepare"
    systems = [one.system for one in contenders]
    if len(systems) < 2 or not (prepared / "pairs.parquet").exists():
        return []
    pairs = Pairs.read(prepared)
    places = {name: place for place, name in enumerate(pairs.table["id"])}
    names = [name for name in telling_pairs(systems, EXAMPLES) if name in places]
    shown = []
    for name in names:
        row = slice(places[name], places[name] + 1)
        first = [(system.name, system.predictions[0][name]) for system in systems]
        said = [(system, told["sentence"], told["type_right"]) for system, told in first]
        told = first[0][1]
        shown.append(
            Shown(name, told["change_type"], told["references"], said, pairs.before(row)[0], pairs.after(row)[0])
        )
    return shown


def _csv(table: Sequence[Sequence[Any]]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(table)
    return out.getvalue()
