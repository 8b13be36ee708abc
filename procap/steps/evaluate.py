"""Step ``evaluate``: caption the untouched test split, score it, and show it. The one step that opens test."""

import csv
import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from procap.captioners import Decoding
from procap.config import Params
from procap.datasets.pairs import NO_CHANGE, SHIFT, Pairs
from procap.datasets.true_procedure import read_true_pairs
from procap.errors import BadInput
from procap.evaluation.java import Meteor
from procap.evaluation.metrics import Scores
from procap.evaluation.page import Example, choose, page, sheet
from procap.evaluation.referring import judge
from procap.evaluation.scores import Told, confusion, flat, predictions, score_all, summary, type_rows
from procap.evaluation.similarity import Embed
from procap.files import atomic_folder, file_digest, write_json, write_text
from procap.report import Report, silent
from procap.steps.outlines import Drawn, Outlines


def run(params: Params, data: Path, *, captioner: str, report: Report = silent) -> None:
    """``data/caption/<captioner>/bundle`` and the test pairs -> ``data/evaluate/<captioner>/``."""
    bundle, target = data / "caption" / captioner / "bundle", data / "evaluate" / captioner
    evaluate_bundle(params, bundle, data / "prepare", target, corpus=params.dataset.name, report=report)


def evaluate_bundle(
    params: Params, bundle_folder: Path, prepared: Path, target: Path, *, corpus: str, report: Report = silent
) -> None:
    """Score a bundle on the test pairs of a folder that ``prepare`` wrote, its own corpus or another.

    Writes metrics.json, per_type.csv, confusion.csv (a row per pair: actual, predicted), predictions.json and
    page.html to ``target``; ``corpus`` is named on the page. Where the corpus has a split test_shift, metrics.json has
    the same numbers of it as ``shift``; nothing else knows of it.
    """
    from procap.captioning.captioner import load_captioner
    from procap.training.runtime import start_runtime

    table_file = prepared / "pairs.parquet"
    if not table_file.exists():
        raise BadInput(
            "there are no pairs",
            where=str(table_file),
            expected="a folder that the step prepare wrote",
            do="name a folder data/prepare, or run `dvc repro prepare`",
        )
    known = Pairs.read(prepared)
    pairs, shifted = known.split("test"), known.split(SHIFT)
    if not len(pairs):
        raise BadInput(
            "there is nothing to evaluate on",
            where=str(table_file),
            expected="at least one pair of the split test",
            do="give the corpus a test split (rendered scenes: prepare.scenes.splits) and run `dvc repro prepare`",
        )
    runtime = start_runtime(**params.machine)
    captioner = load_captioner(bundle_folder, str(runtime.device))
    bundle = captioner.bundle
    told, drawn = _tell(params, pairs, bundle, runtime, report)
    report.note(f"scoring {len(told)} captions")
    embed = _encoder(params)
    outlined = Outlines(bundle, params.seed)
    with Meteor() as meteor:
        scores = outlined.add(pairs, told, drawn, score_all(told, embed=embed, meteor=meteor))
        table = summary(told, scores, generator=np.random.default_rng(params.seed)) | outlined.of(pairs, told, drawn)
        if len(shifted):
            unlike, drawn = _tell(params, shifted, bundle, runtime, report)
            found = outlined.add(shifted, unlike, drawn, score_all(unlike, embed=embed, meteor=meteor))
            table["shift"] = summary(unlike, found, generator=np.random.default_rng(params.seed))
            table["shift"] |= outlined.of(shifted, unlike, drawn)
    selection, origin = (bundle.provenance.get(name) for name in ("selected_on", "pairs_sha256"))
    if selection == "test" and origin == file_digest(table_file):
        report.note("the weights were picked on these very pairs (caption.selection: test), the numbers flatter them")
    for name, reason in sorted(table["skipped"].items()):
        report.note(f"{name}: {reason}")
    galleries = _galleries(params, pairs, captioner, told, scores, "segmentation" in table)
    with atomic_folder(target) as folder:
        write_json(folder / "metrics.json", table)
        write_json(folder / "predictions.json", predictions(told, scores))
        write_text(folder / "per_type.csv", _csv(type_rows(table)))
        rows = [["actual", "predicted"], *([one.actual, one.parsed] for one in told)]
        write_text(folder / "confusion.csv", _csv(rows))
        shown = page(bundle.name, corpus, selection or "unknown", table, confusion(told), galleries)
        write_text(folder / "page.html", shown)
    report.metrics(flat(table))
    report.picture("confusion.png", _confusion_figure(confusion(told)))
    for gallery, examples in galleries.items():
        if examples:
            report.picture(f"{gallery.lower()}.png", sheet(examples))
    for name in ("metrics.json", "predictions.json", "per_type.csv", "confusion.csv", "page.html"):
        report.artifact(target / name)


def _tell(
    params: Params, pairs: Pairs, bundle: Any, runtime: Any, report: Report
) -> tuple[list[Told], Drawn]:
    """Caption every pair, in the table's order; besides, what was outlined."""
    size = params.evaluate.batch
    captions = []
    for start in report.progress(range(0, len(pairs), size), "batches of pairs captioned"):
        rows = slice(start, start + size)
        with runtime.autocast():
            captions += bundle.caption(
                pairs.before(rows), pairs.after(rows), decoding=_decoding(params)
            )
    columns = (pairs.table[name] for name in ("id", "group", "change_type", "captions"))
    told = [
        Told(str(name), str(group), str(kind), said.text, float(said.probability), tuple(map(str, references)))
        for said, name, group, kind, references in zip(captions, *columns, strict=True)
    ]
    return _referred(told, pairs.folder / "scenes.jsonl"), [said.change_mask for said in captions]


def _referred(told: list[Told], scenes: Path) -> list[Told]:
    """With how well each sentence points at what changed, where the true scenes are there."""
    if not scenes.exists():
        return told
    changed = [one for one in told if one.actual != NO_CHANGE]
    true = dict(zip((one.id for one in changed), read_true_pairs(scenes, (one.id for one in changed)), strict=True))
    return [replace(one, referred=judge(one.sentence, true[one.id])) if one.id in true else one for one in told]


def _encoder(params: Params) -> Embed | None:
    """The sentence model that params.yaml names, or the installed one."""
    from procap.checkpoints.sentence_encoder import SentenceEncoder, installed_model

    named = params.evaluate.sentence_model
    folder = Path(named) if named is not None else installed_model()
    return None if folder is None else SentenceEncoder(folder, "evaluate.sentence_model")


def _decoding(params: Params) -> Decoding:
    settings = params.evaluate
    return Decoding(**settings.model_dump(exclude={"batch", "pictures", "sentence_model"}))


def _galleries(
    params: Params, pairs: Pairs, captioner: Any, told: Sequence[Told], scores: Scores, segmented: bool
) -> dict[str, list[Example]]:
    """The chosen pairs with their pictures and why the captioner says what it says."""
    generator = np.random.default_rng(params.seed)
    chosen = choose(told, scores.pairs.get("CIDEr", {}), params.evaluate.pictures, generator)
    rows = np.array([row for numbers in chosen.values() for row in numbers], dtype=np.int64)
    before, after = (list(pictures) if len(rows) else [] for pictures in (pairs.before(rows), pairs.after(rows)))
    said = captioner.stream(
        zip(before, after, strict=True), params.evaluate.batch, explain=True, decoding=_decoding(params)
    )
    shown = {
        row: Example(
            told[row], before[place], after[place], one.words, one.word_probabilities, one.change_probability,
            one.explanation, one.change_mask, pairs.changed(np.array([row]))[0] if segmented else None,
        )
        for (place, row), one in zip(enumerate(rows.tolist()), said, strict=True)
    }  # fmt: skip
    return {name: [shown[row] for row in numbers] for name, numbers in chosen.items()}


def _csv(rows: Sequence[Sequence[Any]]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue()


def _confusion_figure(counts: dict[str, dict[str, int]]) -> Any:
    """True types down, stated types across; colour is the share of the row."""
    from matplotlib.figure import Figure

    actual, stated = list(counts), list(next(iter(counts.values())))
    numbers = np.array([[counts[a][s] for s in stated] for a in actual])
    shares = numbers / numbers.sum(axis=1, keepdims=True)
    figure = Figure(figsize=(1.8 + 0.8 * len(stated), 1.5 + 0.6 * len(actual)), layout="constrained")
    axes = figure.add_subplot()
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    axes.set_xticks(range(len(stated)), stated)
    axes.set_yticks(range(len(actual)), actual)
    axes.set_xlabel("the sentence says")
    axes.set_ylabel("what changed")
    for (row, column), number in np.ndenumerate(numbers):
        color = "white" if shares[row, column] > 0.55 else "black"
        axes.text(column, row, str(number), ha="center", va="center", color=color)
    return figure
