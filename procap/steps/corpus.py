"""A corpus on disk, checked: what ``prepare`` and ``procap import`` share. No step of its own."""

import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from procap.datasets import raw
from procap.datasets.corpora import CORPORA
from procap.datasets.corpus import NO_CHANGE, SPLITS, UNKNOWN_CHANGE, Corpus, PairFiles, Reading, refuse, says_nothing
from procap.datasets.grouping import connect, draw_splits
from procap.datasets.images import read_image, read_mask
from procap.datasets.parallel import in_order
from procap.errors import BadInput
from procap.evaluation.change_words import change_type
from procap.files import write_json
from procap.report import Report, silent

SHARES = (0.8, 0.1, 0.1)
"""Of train, val and test, where a corpus has no splits."""


@dataclass(frozen=True)
class Imported:
    """What became of a corpus."""

    counts: Mapping[str, int]
    """Pairs by split."""
    left_out: Mapping[str, int]
    """Sentences and pairs by reason."""
    warnings: Sequence[str] = field(default_factory=tuple)


def read_corpus(folder: Path, name: str, limit: int | None = None) -> Reading:
    """The pairs of an imported corpus, or of one in its published layout; every file they name is there.

    ``limit``: only so many, the splits keeping their shares. Raises BadInput that names what is missing.
    """
    reading = raw.read(folder) if (folder / raw.SUMMARY).exists() else CORPORA[name].read(folder)
    reading = replace(reading, pairs=tuple(map(_told, limited(reading.pairs, limit))), listed=reading.counts)
    twice = [name for name, count in Counter(pair.id for pair in reading.pairs).items() if count > 1]
    refuse(twice, "ids are there twice", folder, "an id per pair")
    mute = [pair.id for pair in reading.pairs if not pair.captions or any(map(says_nothing, pair.captions))]
    refuse(mute, "pairs have no caption, or one without a word", folder, "a sentence for every pair")
    files = dict.fromkeys(path for pair in reading.pairs for path in files_of(pair))
    missing = [path.relative_to(folder).as_posix() for path in files if not path.is_file()]
    refuse(missing, "pictures are missing", folder, "every picture that has captions, or a link that leads to it")
    if not reading.pairs:
        raise BadInput("the corpus has no pairs", where=str(folder), expected="at least one", do="add some")
    return reading


def limited(pairs: Sequence[PairFiles], limit: int | None) -> list[PairFiles]:
    """The first pairs of every split, in the corpus' order: as many of each as its share of ``limit``, or one."""
    if limit is None or limit >= len(pairs):
        return list(pairs)
    sizes = Counter(pair.split for pair in pairs)
    most = {split: max(1, limit * size // len(pairs)) for split, size in sizes.items()}
    largest = max(sizes, key=sizes.__getitem__)
    most[largest] += limit - sum(most.values())
    taken: Counter[str | None] = Counter()
    kept = []
    for pair in pairs:
        if taken[pair.split] < most[pair.split]:
            taken[pair.split] += 1
            kept.append(pair)
    return kept


def files_of(pair: PairFiles) -> tuple[Path, ...]:
    """Both pictures, and the mask if there is one."""
    return (pair.before, pair.after, *([pair.mask] if pair.mask else []))


def check_shapes(name: str, before: Any, after: Any, mask: Any, files: PairFiles) -> None:
    """Raise BadInput unless both pictures, and the mask if there is one, have the same size."""
    for what, array, path in (("pictures", after, files.after), ("mask and the pictures", mask, files.mask)):
        if array is not None and array.shape[:2] != before.shape[:2]:
            (height, width), (other, across) = before.shape[:2], array.shape[:2]
            raise BadInput(
                f"the {what} of pair '{name}' differ in size: {width} x {height} and {across} x {other}",
                where=f"{files.before} and {path}",
                expected="one size",
                do="replace one of them, or take the pair out of the corpus",
            )


def write_raw(
    corpus: Corpus,
    source: Path,
    target: Path,
    *,
    limit: int | None = None,
    shares: Sequence[float] | None = None,
    seed: int = 0,
    skip: bool = False,
    place: Callable[[Path, Path], Any] = shutil.copyfile,
    report: Report = silent,
) -> Imported:
    """Check every file of a corpus and write it to ``target`` as ``data/raw/<name>`` has to be.

    ``shares`` draws the splits anew; without, they are drawn only where the corpus has none. ``skip`` leaves out pairs
    that cannot be used, which otherwise raise BadInput. ``place(from, to)`` brings a file to its place.
    """
    reading = read_corpus(source, corpus.name, limit)
    left_out = Counter(reading.left_out)
    digests, broken = _examine(reading.pairs, skip, report)
    left_out.update({"pairs with a file that cannot be used": len(broken)} if broken else {})
    pairs = [pair for pair in reading.pairs if pair.id not in broken]
    if not pairs:
        first = next(iter(broken.values()))
        raise BadInput(f"no pair can be used: {first}", where=str(source), expected="sound pictures", do="replace them")
    drawn = shares is not None or pairs[0].split is None
    pairs = _grouped(pairs, digests, anew=drawn)
    if drawn:
        splits = draw_splits(Counter(pair.group for pair in pairs), shares or SHARES, seed)
        pairs = [replace(pair, split=splits[pair.group]) for pair in pairs]
    leaks = _leaks(pairs, digests)
    if corpus.own:
        do = "change the column split, drop it, or draw anew with --splits"
        refuse(leaks, "pictures are in several splits", source, "a picture in one split", do)
    raw.write_pairs(target, pairs, source)
    files = dict.fromkeys(path for pair in pairs for path in files_of(pair))
    for path in report.progress(files, "files", len(files)):
        there = target / raw.PICTURES / path.relative_to(source)
        there.parent.mkdir(parents=True, exist_ok=True)
        place(path, there)
    counts = {split: sum(pair.split == split for pair in pairs) for split in SPLITS}
    warnings = [f"{len(leaks)} pictures are in several splits, as published"] if leaks else []
    warnings += [f"no pair is in '{split}', and training needs all three" for split in SPLITS if not counts[split]]
    if corpus.published and limit is None and not drawn and reading.counts != dict(corpus.published):
        warnings.append(f"the corpus lists {_said(reading.counts)}; the published one {_said(corpus.published)}")
    same = sum(digests[pair.before] == digests[pair.after] and pair.change_type != NO_CHANGE for pair in pairs)
    warnings += [f"{same} pairs that are said to differ have one and the same picture"] if same else []
    warnings += [f"set aside: {each}" for each in broken.values()]
    done = Imported(counts, dict(sorted(left_out.items())), warnings)
    content = {"corpus": corpus.name, "pairs": counts, "listed": reading.counts, "left_out": done.left_out}
    write_json(target / raw.SUMMARY, {**content, "warnings": warnings, "splits_drawn": drawn})
    return done


def _told(pair: PairFiles) -> PairFiles:
    """The pair with a change type: where the corpus says none, its captions tell whether anything changed."""
    if pair.change_type is not None:
        return pair
    same = all(change_type(caption) == NO_CHANGE for caption in pair.captions)
    return replace(pair, change_type=NO_CHANGE if same else UNKNOWN_CHANGE)


def _examine(pairs: Sequence[PairFiles], skip: bool, report: Report) -> tuple[dict[Path, bytes], dict[str, str]]:
    """Decode every file: (digests of files, what is wrong with which pair). All that is wrong is said at once."""
    digests: dict[Path, bytes] = {}
    wrong: list[tuple[str, BadInput]] = []
    for pair, result in zip(pairs, report.progress(in_order(_look, pairs), "pairs", len(pairs)), strict=True):
        if isinstance(result, BadInput):
            wrong.append((pair.id, result))
        else:
            digests.update(result)
    if len(wrong) == 1 and not skip:
        raise wrong[0][1]
    broken = {name: f"{complaint.what} ({complaint.where})" for name, complaint in wrong}
    if not skip:
        refuse(
            [f"'{name}': {what}" for name, what in broken.items()], "pairs cannot be used", pairs[0].before.parent,
            "sound pictures of one size per pair", "replace them, or leave them out with --on-error skip",
        )  # fmt: skip
    return digests, broken


def _look(pair: PairFiles) -> dict[Path, bytes] | BadInput:
    try:
        mask = read_mask(pair.mask, pair.classes) if pair.mask else None
        check_shapes(pair.id, read_image(pair.before), read_image(pair.after), mask, pair)
        return {path: sha256(path.read_bytes()).digest() for path in files_of(pair)}
    except BadInput as complaint:
        return complaint


def _grouped(pairs: list[PairFiles], digests: Mapping[Path, bytes], anew: bool) -> list[PairFiles]:
    """The pairs, those that hang together by a picture in one group; splits that stand are not connected."""
    keys = [
        [(None if anew else pair.split, key) for key in (pair.group, digests[pair.before], digests[pair.after])]
        for pair in pairs
    ]
    return [replace(pair, group=pairs[first].group) for pair, first in zip(pairs, connect(keys), strict=True)]


def _leaks(pairs: list[PairFiles], digests: Mapping[Path, bytes]) -> list[str]:
    """Names of pictures that more than one split has."""
    homes: dict[bytes, dict[str | None, str]] = {}
    for pair in pairs:
        for path in (pair.before, pair.after):
            homes.setdefault(digests[path], {}).setdefault(pair.split, path.name)
    return [" = ".join(dict.fromkeys(names.values())) for names in homes.values() if len(names) > 1]


def _said(counts: Mapping[str, int]) -> str:
    return " / ".join(f"{counts[split]} {split}" for split in SPLITS)


def loaded(
    pairs: Sequence[PairFiles], load: Callable[[list[PairFiles]], list[Any]], skip: bool
) -> Iterator[tuple[list[PairFiles], list[Any] | BadInput]]:
    """Runs of pairs with one picture before, and what ``load`` makes of each, on all cores, in order.

    With ``skip``, a complaint stands in the place of pairs that ``load`` complains of; without, it is raised.
    """
    runs: list[list[PairFiles]] = []
    for pair in pairs:
        if runs and runs[-1][0].before == pair.before:
            runs[-1].append(pair)
        else:
            runs.append([pair])

    def attempt(run: list[PairFiles]) -> list[Any] | BadInput:
        try:
            return load(run)
        except BadInput as complaint:
            if skip:
                return complaint
            raise

    yield from zip(runs, in_order(attempt, runs), strict=True)
