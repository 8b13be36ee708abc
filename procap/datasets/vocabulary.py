"""Words and their numbers. The marks and their numbers are those of the reference implementation."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from procap.errors import BadInput

SPECIALS = ("[PAD]", "[CLS]", "[SEP]", "[VID]", "[BOS]", "[EOS]", "[UNK]", "[MASK]")
PAD, CLS, SEP, VID, BOS, EOS, UNK, MASK = range(len(SPECIALS))
MARKS = 2
"""Of every sentence: [BOS] and [EOS]."""

_TOKEN = re.compile(
    r"""
    \d+(?:[.,]\d+)+               # 3.5  1,000
    | n't\b                       # did n't
    | '(?:s|re|ve|ll|d|m)\b       # it 's
    | [^\W_]+?(?=n't\b)           # what stands before n't
    | [^\W_]+(?:-[^\W_]+)*        # words, hyphens inside
    """,
    re.VERBOSE,
)


def tokenize(text: str) -> list[str]:
    """Lower-case words, about as the Penn Treebank splits them ("isn't" is "is" "n't"), without punctuation."""
    return _TOKEN.findall(text.lower().replace("\u2019", "'"))


def sequence_length(captions: Iterable[str], most: int) -> int:
    """l: words of the longest caption and the two marks, but never more than ``most``."""
    return min(most, max((len(tokenize(caption)) for caption in captions), default=1) + MARKS)


@dataclass(frozen=True)
class Vocabulary:
    words: tuple[str, ...]
    """In the order of their numbers, each once; the first has the number ``len(SPECIALS)``."""
    length: int
    """l, the length of an encoded sentence, marks included."""

    @staticmethod
    def build(captions: Iterable[str], min_count: int, length: int) -> "Vocabulary":
        """All words that ``captions`` use at least ``min_count`` times, in alphabetical order."""
        counts = Counter(word for caption in captions for word in tokenize(caption))
        return Vocabulary(tuple(sorted(word for word, count in counts.items() if count >= min_count)), length)

    def __len__(self) -> int:
        """v, marks included."""
        return len(SPECIALS) + len(self.words)

    @cached_property
    def numbers(self) -> Mapping[str, int]:
        return {word: number for number, word in enumerate(self.words, len(SPECIALS))}

    def encode(self, text: str, length: int | None = None, cut: bool = False) -> np.ndarray:
        """[BOS] word ... word [EOS] [PAD] ..., int64, ``length`` (or ``self.length``) numbers; unknown words are [UNK].

        A longer sentence raises BadInput, or loses its last words where ``cut`` allows that.
        """
        length = length or self.length
        words = tokenize(text)
        if len(words) > length - MARKS and not cut:
            raise BadInput(
                f"a caption of {len(words)} words is too long",
                where=f"caption '{text}'",
                expected=f"at most {length - MARKS} words",
                do="shorten it, or raise prepare.words in params.yaml",
            )
        numbers = [self.numbers.get(word, UNK) for word in words[: length - MARKS]]
        return np.array([BOS, *numbers, EOS] + [PAD] * (length - MARKS - len(numbers)), np.int64)

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """The words up to the first [EOS]; marks are left out, but an unknown word stays as [UNK]."""
        words = []
        for number in map(int, ids):
            if number == EOS:
                break
            if number == UNK:
                words.append(SPECIALS[UNK])
            elif number >= len(SPECIALS):
                words.append(self.words[number - len(SPECIALS)])
        return " ".join(words)

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values, marks included so that the file explains itself."""
        return {"specials": list(SPECIALS), "words": list(self.words), "length": self.length}

    @staticmethod
    def from_json(value: Any, where: str = "vocabulary.json") -> "Vocabulary":
        """Read what ``to_json`` made; ``where`` is named in complaints. Raises BadInput."""
        problem = _problem(value)
        if problem:
            raise BadInput(
                problem,
                where=where,
                expected="specials, words (each once) and length, as the step `prepare` writes them",
                do="run `dvc repro prepare`, or take the file from the bundle that it belongs to",
            )
        return Vocabulary(tuple(value["words"]), value["length"])

    @staticmethod
    def from_released(value: Any, length: int, where: str) -> "Vocabulary":
        """Read ``{word: number}`` as published code keeps it, the marks at 0 to 7; every word keeps its number.

        ``length`` is l, marks included; ``where`` is named in complaints. Raises BadInput.
        """
        problem = _released_problem(value)
        if problem:
            raise BadInput(
                problem,
                where=where,
                expected="{word: number}, the numbers from 0 without a gap, the eight marks first",
                do="take the file from the release anew, or leave prepare.vocabulary null to count words",
            )
        return Vocabulary(tuple(sorted(value, key=value.__getitem__)[len(SPECIALS) :]), length)

    @staticmethod
    def read_released(path: Path, length: int) -> "Vocabulary":
        """``from_released`` of a JSON file."""
        try:
            value = json.loads(path.read_text(encoding="utf-8-sig"))
        except (OSError, ValueError) as error:
            raise BadInput(
                f"the vocabulary cannot be read ({error})",
                where=str(path),
                expected="a JSON file {word: number}",
                do="mend the path in prepare.vocabulary, or the file",
            ) from None
        return Vocabulary.from_released(value, length, str(path))


def _released_problem(value: Any) -> str | None:
    if not isinstance(value, dict) or not all(type(number) is int for number in value.values()):
        return "not a vocabulary of words and numbers"
    if sorted(value.values()) != list(range(len(value))):
        return "the numbers do not run from 0 without a gap, each once"
    if marks := [f"{mark} is {value.get(mark)}, not {n}" for n, mark in enumerate(SPECIALS) if value.get(mark) != n]:
        return "the marks have other numbers: " + ", ".join(marks)
    return None


def _problem(value: Any) -> str | None:
    if not isinstance(value, dict) or set(value) != {"specials", "words", "length"}:
        return "not a vocabulary"
    if value["specials"] != list(SPECIALS):
        return f"the marks are {value['specials']}, not {list(SPECIALS)}"
    words = value["words"]
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        return "the words are no list of texts"
    if len(set(words)) < len(words):
        return "a word is there twice"
    if type(value["length"]) is not int or value["length"] <= MARKS:
        return f"the length is {value['length']!r}"
    return None
