"""From a corpus (rendered here or on disk) to one table of pairs, shards of square pictures, and the words."""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from procap.config import Params
from procap.datasets import rendered
from procap.datasets.corpus import PairFiles
from procap.datasets.images import outlined, read_image, read_mask, resize, resize_mask
from procap.datasets.pairs import CHANGE_TYPES, COLUMNS, NO_CHANGE, SHIFT, SPLITS, UNKNOWN_CHANGE
from procap.datasets.scenes.scene import SceneSettings
from procap.datasets.shards import ShardWriter
from procap.datasets.vocabulary import MARKS, Vocabulary, sequence_length, tokenize
from procap.errors import BadInput
from procap.files import atomic_folder, write_json, write_text
from procap.report import Report, silent
from procap.steps.corpus import check_shapes, loaded, read_corpus

SHOWN_PER_TYPE = 2
"""Training pairs of each change type in the sample picture."""


@dataclass(frozen=True)
class Pair:
    """One pair as a corpus gives it: pictures square and of the final size."""

    id: str
    group: str
    split: str
    change_type: str
    captions: tuple[str, ...]
    before: np.ndarray
    after: np.ndarray
    mask: np.ndarray | None
    """uint8, 255 where the change is visible; None: the corpus does not say."""
    truth: np.ndarray | None = None
    """The true procedure between the two, without them."""


def run(params: Params, data: Path, *, report: Report = silent) -> None:
    """Write ``data/prepare``: pairs.parquet, images, masks and truth shards, vocabulary, scenes.jsonl, summary.json.

    Also written: long_captions.jsonl, captions that the models will cut; unknown_words.json, how often a word is used
    that the vocabulary lacks; set_aside.jsonl, pairs that ``dataset.on_error: skip`` left out, and why.
    """
    import pandas as pd

    descriptions: list[dict[str, Any]] = []
    set_aside: list[dict[str, Any]] = []
    with atomic_folder(data / "prepare") as fresh:
        if params.dataset.name == "rendered":
            pairs = _rendered(corpus_settings(params), descriptions, report)
        else:
            pairs = pairs_on_disk(data / "raw" / params.dataset.name, params, set_aside, report)
        rows, shown = write_pairs(pairs, fresh)
        table = pd.DataFrame(rows, columns=list(COLUMNS))
        vocabulary = _words(table, params)
        table.to_parquet(fresh / "pairs.parquet", index=False)
        write_json(fresh / "vocabulary.json", vocabulary.to_json())
        text = _text_report(table, vocabulary)
        for name, lines in (
            ("scenes", descriptions if params.dataset.name == "rendered" else None),
            ("long_captions", text.long),
            ("set_aside", set_aside),
        ):
            if lines is not None:
                written = [json.dumps(each, sort_keys=True, ensure_ascii=False) + "\n" for each in lines]
                write_text(fresh / f"{name}.jsonl", "".join(written))
        write_json(fresh / "unknown_words.json", text.unknown)
        summary = _summary(table, vocabulary) | {"text": text.summary, "set_aside": len(set_aside)}
        write_json(fresh / "summary.json", summary)
    if text.long:
        report.note(
            f"{len(text.long)} captions are longer than prepare.words and will be cut in training: "
            f"{data / 'prepare' / 'long_captions.jsonl'}"
        )
    if set_aside:
        report.note(f"{len(set_aside)} pairs were set aside: {data / 'prepare' / 'set_aside.jsonl'}")
    counts = {f"pairs_{split}": of["all"] for split, of in summary["pairs"].items()} | {"words": summary["words"]}
    report.metrics({name: float(count) for name, count in counts.items()})
    report.picture("pairs.png", draw_pairs(shown))


def corpus_settings(params: Params) -> rendered.CorpusSettings:
    """What the renderer needs to know of the parameters."""
    scenes = params.prepare.scenes
    usual = SceneSettings(
        scenes.objects,
        scenes.camera_jitter,
        scenes.light_jitter,
        turn=scenes.turn,
        hidden=scenes.hidden,
        size_jitter=scenes.size_jitter,
        changes=scenes.changes,
        palette="usual" if scenes.shift.count else "all",
    )
    return rendered.CorpusSettings(
        seed=params.seed,
        count=scenes.count,
        size=params.prepare.image_size,
        samples=scenes.samples,
        splits=scenes.splits,
        scenes=usual,
        truth=params.interpolate.frames if scenes.truth else 0,
        shift_count=scenes.shift.count,
        shift=replace(usual, objects=scenes.shift.objects, aside=scenes.shift.aside, palette="swapped"),
    )


def _rendered(settings: rendered.CorpusSettings, descriptions: list[dict[str, Any]], report: Report) -> Iterator[Pair]:
    """Draw the scenes; what is known of each is appended to ``descriptions``."""
    for scene in rendered.render_corpus(settings, report):
        ids = f"{scene.group}c", f"{scene.group}nc"
        descriptions.append({**rendered.description(scene), "ids": list(ids)})
        truth = scene.truth if settings.truth else (None, None)
        mask = scene.mask.astype(np.uint8) * 255
        story = scene.story
        common = scene.group, scene.split
        yield Pair(ids[0], *common, story.change_type, story.captions, scene.before, scene.changed, mask, truth[0])
        yield Pair(
            ids[1], *common, NO_CHANGE, story.no_change_captions, scene.before, scene.distractor, mask * 0, truth[1]
        )


def pairs_on_disk(folder: Path, params: Params, set_aside: list[dict[str, Any]], report: Report) -> Iterator[Pair]:
    """Read, check and resize the pictures of a corpus; pairs that are left out are appended to ``set_aside``."""
    files = read_corpus(folder, params.dataset.name, params.prepare.limit).pairs
    if any(pair.split is None for pair in files):
        raise BadInput(
            "the corpus has no splits",
            where=str(folder),
            expected="pairs in train, val and test",
            do=f"move it elsewhere and run `procap import {params.dataset.name} <folder>`, which draws them",
        )
    masked = any(pair.mask for pair in files)
    work = partial(_load, side=params.prepare.image_size, masked=masked)
    runs = loaded(files, work, skip=params.dataset.on_error == "skip")
    for run, pairs in report.progress(runs, "pictures before", len({pair.before for pair in files})):
        if not isinstance(pairs, BadInput):
            yield from pairs
        else:
            why = {"what": pairs.what, "where": pairs.where}
            set_aside += [{"id": pair.id, "split": pair.split, **why} for pair in run]


def _load(files: list[PairFiles], side: int, masked: bool) -> list[Pair]:
    """Pairs with one picture before, which is read once."""
    original = read_image(files[0].before)
    before, pairs = resize(original, side), []
    for pair in files:
        after = read_image(pair.after)
        mask = read_mask(pair.mask, pair.classes) if pair.mask else None
        check_shapes(pair.id, original, after, mask, pair)
        if mask is not None:
            mask = resize_mask(mask, side)
        elif masked and pair.change_type == NO_CHANGE:
            mask = np.zeros((side, side), np.uint8)
        described = pair.id, pair.group, str(pair.split), str(pair.change_type), pair.captions
        pairs.append(Pair(*described, before, resize(after, side), mask))
    return pairs


def write_pairs(pairs: Iterator[Pair], folder: Path) -> tuple[list[dict[str, Any]], list[Pair]]:
    """Write the shards; returns the rows of the table and some training pairs to look at."""
    rows: list[dict[str, Any]] = []
    shown: dict[str, list[Pair]] = {kind: [] for kind in (*CHANGE_TYPES, NO_CHANGE, UNKNOWN_CHANGE)}
    writers: dict[str, ShardWriter] = {}

    def append(name: str, row: np.ndarray) -> int:
        if name not in writers:
            writers[name] = ShardWriter(folder, name, row.shape, np.uint8)
        writers[name].append(row[None])
        return writers[name].count - 1

    last, before = None, -1
    for pair in pairs:
        if pair.before is not last:
            last, before = pair.before, append("images", pair.before)
        after = append("images", pair.after)
        mask = -1 if pair.mask is None else append("masks", pair.mask)
        if pair.truth is not None:
            append("truth", pair.truth)
        described = pair.id, pair.group, pair.split, pair.change_type, list(pair.captions)
        rows.append(dict(zip(COLUMNS, (*described, before, after, mask), strict=True)))
        if pair.split == "train" and len(shown[pair.change_type]) < SHOWN_PER_TYPE:
            shown[pair.change_type].append(pair)
    for writer in writers.values():
        with writer:
            pass  # leaving writes the last shard
    return rows, [pair for kind in shown.values() for pair in kind]


def _words(table: Any, params: Params) -> Vocabulary:
    """Words of the training captions; the length also fits those of the validation captions."""
    for split in SPLITS:
        if not (table["split"] == split).any():
            raise BadInput(
                f"the split '{split}' has no pairs",
                where=f"the corpus '{params.dataset.name}', {len(table)} pairs",
                expected="pairs to train on, to select with and to test",
                do="raise prepare.limit or prepare.scenes.count, or mend the splits",
            )
    if params.prepare.vocabulary:
        return Vocabulary.read_released(Path(params.prepare.vocabulary), params.prepare.words)
    train, seen = (
        [caption for captions in table.loc[table["split"].isin(splits), "captions"] for caption in captions]
        for splits in (("train",), ("train", "val"))
    )
    return Vocabulary.build(train, params.prepare.min_count, sequence_length(seen, params.prepare.words))


@dataclass(frozen=True)
class TextReport:
    summary: dict[str, Any]
    long: list[dict[str, Any]]
    """Captions that do not fit, by pair."""
    unknown: dict[str, int]
    """How often each word is used that the vocabulary lacks, the most frequent first."""


def _text_report(table: Any, vocabulary: Vocabulary) -> TextReport:
    """Lengths and unknown words of the captions of every split."""
    long, unknown, summary = [], Counter[str](), {}
    for split in _splits(table):
        lengths, lacking = [], Counter[str]()
        for name, captions in table.loc[table["split"] == split, ["id", "captions"]].itertuples(index=False):
            for caption in captions:
                words = tokenize(caption)
                lengths.append(len(words))
                lacking.update(word for word in words if word not in vocabulary.numbers)
                if len(words) > vocabulary.length - MARKS:
                    long.append({"id": name, "split": split, "words": len(words), "caption": caption})
        summary[split] = {
            "captions": len(lengths),
            "words": sum(lengths),
            "words_per_caption": round(float(np.mean(lengths)), 3),
            "words_in_the_longest": max(lengths),
            "unknown_words": lacking.total(),
            "unknown_share": round(lacking.total() / max(1, sum(lengths)), 6),
        }
        unknown += lacking
    return TextReport(summary, long, dict(sorted(unknown.items(), key=lambda each: (-each[1], each[0]))))


def _splits(table: Any) -> tuple[str, ...]:
    return (*SPLITS, *({SHIFT} & set(table["split"])))


def _summary(table: Any, vocabulary: Vocabulary) -> dict[str, Any]:
    """Counts of pairs by split and change type, and of words."""
    counts = {
        split: {"all": int((table["split"] == split).sum())}
        | {
            kind: int(((table["split"] == split) & (table["change_type"] == kind)).sum())
            for kind in sorted(set(table["change_type"]))
        }
        for split in _splits(table)
    }
    return {
        "pairs": counts,
        "captions": int(table["captions"].map(len).sum()),
        "words": len(vocabulary.words),
        "length": vocabulary.length,
    }


def draw_pairs(pairs: list[Pair], side: int = 128) -> Any:
    """A PIL image with a line per pair: before and after (the change outlined in white), type and captions."""
    from PIL import Image, ImageDraw

    sheet = Image.new("RGB", (2 * side + 340, max(1, len(pairs)) * (side + 4)), "white")
    draw = ImageDraw.Draw(sheet)
    for number, pair in enumerate(pairs):
        top = number * (side + 4)
        for column, picture in enumerate((pair.before, pair.after)):
            large = Image.fromarray(picture).resize((side, side), Image.Resampling.NEAREST)
            sheet.paste(outlined(large, pair.mask), (column * (side + 2), top))
        text = "\n".join([f"{pair.id}  {pair.change_type}", *pair.captions[:6]])
        draw.multiline_text((2 * side + 12, top + 4), text, fill="black", spacing=5)
    return sheet
