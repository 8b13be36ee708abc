"""BLEU, METEOR, ROUGE-L, CIDEr and SPICE as pycocoevalcap computes them, times 100.

What cannot be computed is left out and named with its reason in ``Scores.skipped``; it is never a zero.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from procap.datasets.vocabulary import tokenize
from procap.evaluation import java

METRICS = ("BLEU", "METEOR", "ROUGE-L", "CIDEr", "SPICE")
NAMES = ("BLEU-1", "BLEU-2", "BLEU-3", "BLEU-4", "METEOR", "ROUGE-L", "CIDEr", "SPICE")
"""Keys of the results, in the order of the papers' tables."""


@dataclass(frozen=True)
class Scores:
    """Results by metric name; every number is times 100."""

    corpus: dict[str, float]
    pairs: dict[str, dict[str, float]]
    """metric -> pair -> score."""
    groups: dict[str, dict[str, float]] = field(default_factory=dict)
    """group -> metric -> score."""
    skipped: dict[str, str] = field(default_factory=dict)
    """What was left out, or done in another way, and why."""


def score(
    predictions: Mapping[str, str],
    references: Mapping[str, Sequence[str]],
    *,
    metrics: Sequence[str] = METRICS,
    groups: Mapping[str, Sequence[str]] | None = None,
) -> Scores:
    """Score one sentence per pair against the pair's references; ``groups`` names selections of pairs.

    In a group CIDEr is the mean over its pairs, with the word statistics of all pairs, so groups add up to the
    whole. ``CIDEr-alone`` is the group scored as if there were nothing else, which is what published tables per
    change type show; it is left out of a group whose pairs all have the same references, where it is 0 for any text.
    """
    if not predictions or predictions.keys() != references.keys() or not all(references.values()):
        raise ValueError("predictions and references must name the same pairs, each with at least one reference")
    if unknown := set(metrics) - set(METRICS):
        raise ValueError(f"no metric {sorted(unknown)}; there are {', '.join(METRICS)}")
    skipped: dict[str, str] = {}
    no_java = java.why_no_java()
    words, reference_words = _split_all(predictions, references, no_java, skipped)
    selections = {"": list(predictions), **{name: list(members) for name, members in (groups or {}).items()}}
    found: dict[str, dict[str, float]] = {name: {} for name in selections}
    pairs: dict[str, dict[str, float]] = {}
    work = _Work(words, reference_words, selections, found, pairs, skipped)
    for metric in (name for name in METRICS if name in metrics):
        if metric in ("METEOR", "SPICE") and no_java:
            skipped[metric] = no_java
        else:
            _MEASURES[metric](work)
    corpus = found.pop("")
    return Scores(corpus, pairs, found, skipped)


def cider(predictions: Mapping[str, str], references: Mapping[str, Sequence[str]]) -> tuple[float, dict[str, float]]:
    """CIDEr times 100 of the corpus and of each pair, without Java: sentences are words between single spaces.

    The same number as ``score`` where the sentences hold no punctuation and no capitals. 0 for any text when all
    pairs have the same references, because words that occur everywhere weigh nothing.
    """
    from pycocoevalcap.cider.cider import Cider

    names = list(predictions)
    corpus, pairs = Cider().compute_score(
        {name: list(references[name]) for name in names}, {name: [predictions[name]] for name in names}
    )
    return 100 * float(corpus), {name: 100 * float(value) for name, value in zip(names, pairs, strict=True)}


def own_words(sentence: str) -> str:
    """Words with one space between: what stands in for the PTB tokenizer, the same rules as the vocabulary's.

    Differs from PTB on "cannot", brackets, currencies, abbreviations and slashes.
    """
    return " ".join(tokenize(sentence))


def _without_punctuation(words: Sequence[str]) -> str:
    from pycocoevalcap.tokenizer.ptbtokenizer import PUNCTUATIONS

    return " ".join(word for word in words if word not in PUNCTUATIONS)


def _split_all(
    predictions: Mapping[str, str],
    references: Mapping[str, Sequence[str]],
    no_java: str | None,
    skipped: dict[str, str],
) -> tuple[dict[str, str], dict[str, list[str]]]:
    """Predictions and references as words, all through the tokenizer at once."""
    sentences = [*predictions.values(), *(text for name in predictions for text in references[name])]
    reason = no_java
    if reason is None:
        try:
            split = [_without_punctuation(line.split(" ")) for line in java.ptb_lines(sentences)]
        except java.JavaFailed as error:
            reason = str(error)
    if reason is not None:
        skipped["PTBTokenizer"] = f"{reason}; sentences were split by procap's own rules instead"
        split = [own_words(sentence) for sentence in sentences]
    rest = iter(split)
    words = {name: next(rest) for name in predictions}
    return words, {name: [next(rest) for _ in references[name]] for name in predictions}


@dataclass(frozen=True)
class _Work:
    """What the measures share: they read the words and fill ``found``, ``pairs`` and ``skipped``."""

    words: dict[str, str]
    references: dict[str, list[str]]
    selections: dict[str, list[str]]
    found: dict[str, dict[str, float]]
    pairs: dict[str, dict[str, float]]
    skipped: dict[str, str]

    def coco(self, members: Sequence[str]) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
        """References and predictions of some pairs in pycocoevalcap's form."""
        return {name: self.references[name] for name in members}, {name: [self.words[name]] for name in members}

    def keep(self, metric: str, pairs: Mapping[str, Any]) -> None:
        """Keep scores in [0, 1] per pair, and their mean for every selection."""
        self.pairs[metric] = {name: 100 * float(value) for name, value in pairs.items()}
        for selection, members in self.selections.items():
            self.found[selection][metric] = float(np.mean([self.pairs[metric][name] for name in members]))


def _bleu(work: _Work) -> None:
    from pycocoevalcap.bleu.bleu import Bleu

    for selection, members in work.selections.items():
        corpus, pairs = Bleu(4).compute_score(*work.coco(members), verbose=0)
        for order, value in enumerate(corpus):
            work.found[selection][f"BLEU-{order + 1}"] = 100 * float(value)
            if not selection:
                percent = (100 * float(one) for one in pairs[order])
                work.pairs[f"BLEU-{order + 1}"] = dict(zip(members, percent, strict=True))


def _meteor(work: _Work) -> None:
    try:
        with java.Meteor() as meteor:
            counted = {name: meteor.statistics(work.words[name], work.references[name]) for name in work.words}
            found = {
                selection: meteor.scores([counted[name] for name in members])
                for selection, members in work.selections.items()
            }
    except java.JavaFailed as error:
        work.skipped["METEOR"] = str(error)
        return
    for selection, (corpus, _) in found.items():
        work.found[selection]["METEOR"] = 100 * corpus
    work.pairs["METEOR"] = {name: 100 * one for name, one in zip(work.words, found[""][1], strict=True)}


def _rouge(work: _Work) -> None:
    from pycocoevalcap.rouge.rouge import Rouge

    _, pairs = Rouge().compute_score(*work.coco(list(work.words)))
    work.keep("ROUGE-L", dict(zip(work.words, pairs, strict=True)))


def _cider(work: _Work) -> None:
    if _all_alike(work, list(work.words)):
        work.skipped["CIDEr"] = "all pairs have the same references, so no word tells one pair from another"
        return
    _, pairs = cider(work.words, work.references)
    work.keep("CIDEr", {name: value / 100 for name, value in pairs.items()})
    for selection, members in work.selections.items():
        if selection and not _all_alike(work, members):
            alone, _ = cider(
                {name: work.words[name] for name in members}, {name: work.references[name] for name in members}
            )
            work.found[selection]["CIDEr-alone"] = alone


def _spice(work: _Work) -> None:
    reason = java.why_no_spice()
    if reason is None:
        try:
            work.keep("SPICE", java.spice_scores(work.words, work.references))
        except java.JavaFailed as error:
            reason = str(error)
    if reason is not None:
        work.skipped["SPICE"] = reason


def _all_alike(work: _Work, members: Sequence[str]) -> bool:
    return len({frozenset(work.references[name]) for name in members}) < 2


_MEASURES = {"BLEU": _bleu, "METEOR": _meteor, "ROUGE-L": _rouge, "CIDEr": _cider, "SPICE": _spice}
