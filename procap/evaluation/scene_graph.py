"""What a change caption says, as things with attributes, relations and changes; and how much of it references say.

Our formulation: a chunker with word lists, made for captions of changes, not a parser of English. A noun phrase runs up
to the next preposition, verb, adverb or pronoun; its last word is the thing, the words before are its attributes. "The
small red cube left of the sphere turned green" holds: cube; cube small; cube red; sphere; cube left of sphere; cube
changes colour; cube becomes green. A verb that is not in the lists and has no ending -ed or -ing is taken for a noun.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from procap.datasets.pairs import NO_CHANGE, UNKNOWN_CHANGE
from procap.evaluation.change_words import change_type


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


COLORS = _words("gray red blue green brown purple cyan yellow orange pink black white silver gold")
MATERIALS = _words("metal rubber plastic glass wood wooden")
SIZES = _words("small large")
SYNONYMS = {
    "grey": "gray", "ball": "sphere", "block": "cube", "big": "large", "little": "small", "tiny": "small",
    "metallic": "metal", "shiny": "metal", "glossy": "metal", "matte": "rubber", "dull": "rubber",
    "thing": "object", "one": "object", "item": "object", "shape": "object", "people": "person",
}  # fmt: skip
"""Those of CLEVR's questions (Johnson et al. 2017), and a few more."""

_PHRASES = (
    (r"(?:(?:to|on|at) the )?(left|right)(?: hand)?(?: side)? of", r"\1_of"),
    (r"in front of|ahead of", "in_front_of"),
    (r"in back of|at the back of", "behind"),
    (r"next to|close to|beside|near", "next_to"),
    (r"on top of", "on"),
    (r"inside(?: of)?|within", "in"),
    (r"underneath|beneath|below", "under"),
)
_COMPILED = tuple((re.compile(rf"\b(?:{phrase})\b"), name) for phrase, name in _PHRASES)
_PREPOSITIONS = _words(
    "left_of right_of in_front_of next_to behind in on at under above over between with from of by through along "
    "across against around into onto to for"
)
_DETERMINERS = _words(
    "the a an this these those its their his her some another other all both each every any no same "
    "different new"
)
_LINKS = _words("is are was were be been that which who")
_ABSTRACT = _words(
    "color colour hue material surface texture place position spot location size scene picture image view photo "
    "difference change"
)
_BREAKS = _words(
    "it they he she someone somebody something everything nothing there here now no longer not n't anymore more still "
    "just also only then before after again away out off up down newly and or but while as than being has have had do "
    "does did can will would may gone missing left right turn turns became become becomes change changes paint "
    "made make remade moves move remove removes vanish disappear appear appears add adds put took take taken show "
    "shows went goes go came come stay stays remain remains look looks seem seems stand stands sit sits visible "
    "identical absent"
)
_NOUNS = _words("building painting ceiling clothing parking string morning railing awning wing")
_ENDING = re.compile(r"\w{3,}(?:ing|ed)$")
_SPLIT = re.compile(r"\band\b|\bwhile\b|\bbut\b|[.;,]")


@dataclass(frozen=True)
class Thing:
    noun: str
    attributes: frozenset[str]

    def one_of(self, names: frozenset[str]) -> str | None:
        """The first of its attributes that is among these."""
        return min(self.attributes & names, default=None)


@dataclass(frozen=True)
class Clause:
    """One change, as it is told."""

    kind: str
    """One of CHANGE_TYPES, NO_CHANGE or UNKNOWN_CHANGE."""
    things: tuple[Thing, ...]
    subjects: tuple[int, ...]
    """Numbers of the things that it is about."""
    relations: tuple[tuple[int, str, int], ...]
    """(thing, relation, thing) that belong to what a thing is called."""
    places: tuple[tuple[int, str, int], ...]
    """Likewise, told after a verb: where something went."""
    becomes: str | None
    """A changed thing's new colour or material."""


def clauses(sentence: str) -> tuple[Clause, ...]:
    """The changes that a sentence tells, in its order."""
    return tuple(_Reader(change_type(text), text).read() for text in _split(sentence))


def graph(sentence: str) -> frozenset[tuple[str, ...]]:
    """All it says: (thing), (thing, attribute), (thing, relation, thing), (thing, "changes", type), (thing, "becomes",
    value); of a sentence that says that nothing changed only that."""
    return frozenset(fact for clause in clauses(sentence) for fact in _facts(clause))


def scene_graph_f1(sentence: str, references: Sequence[str]) -> float:
    """Harmonic mean, in [0, 1], of the shares of what it says and of what a reference says that the other says too.

    The reference that fits best counts. It is not SPICE: that has a parser trained on English, takes the references
    together, and knows no changes.
    """
    said = graph(sentence)
    return max(_f1(said, graph(reference)) for reference in references)


def _f1(said: frozenset[tuple[str, ...]], wanted: frozenset[tuple[str, ...]]) -> float:
    return 2 * len(said & wanted) / (len(said) + len(wanted)) if said and wanted else 0.0


def _facts(clause: Clause) -> Iterator[tuple[str, ...]]:
    if clause.kind == NO_CHANGE:
        yield ("nothing", "changes")
        return
    for thing in clause.things:
        yield (thing.noun,)
        yield from ((thing.noun, attribute) for attribute in thing.attributes)
    for one, relation, other in (*clause.relations, *clause.places):
        yield clause.things[one].noun, relation, clause.things[other].noun
    for number in clause.subjects:
        if clause.kind != UNKNOWN_CHANGE:
            yield clause.things[number].noun, "changes", clause.kind
        if clause.becomes is not None:
            yield clause.things[number].noun, "becomes", clause.becomes


def _split(sentence: str) -> Iterator[str]:
    """Its parts that each tell a change; what tells none stays with its neighbour."""
    current, known = "", False
    for piece in _SPLIT.split(sentence.lower()):
        tells = change_type(piece) != UNKNOWN_CHANGE
        if tells and known:
            yield current
            current, known = piece, True
        else:
            current, known = f"{current} and {piece}" if current.strip() else piece, known or tells
    if current.strip():
        yield current


class _Reader:
    """Reads one clause word by word."""

    def __init__(self, kind: str, text: str) -> None:
        self.kind = kind
        text = " ".join(re.findall(r"[^\W_]+(?:'[^\W_]+)?", text))
        for pattern, name in _COMPILED:
            text = pattern.sub(name, text)
        self.words = [SYNONYMS.get(word, word) for word in text.split()]
        self.chunk: list[str] = []
        self.things: list[Thing] = []
        self.subjects: list[int] = []
        self.relations: list[tuple[int, str, int]] = []
        self.places: list[tuple[int, str, int]] = []
        self.values: list[str] = []
        self.preposition: str | None = None
        self.last: int | None = None
        self.joined = False
        self.verb = False
        self.article = False

    def read(self) -> Clause:
        for word in self.words:
            opens, self.article = self.article, word in _DETERMINERS
            if word in _PREPOSITIONS:
                self._close()
                self.preposition = word
            elif word in _DETERMINERS or word in _LINKS:
                self._close()
            elif word == "and":
                self._close()
                self.joined = not self.verb and not self.relations
            elif _breaks(word, opens):
                self._close()
                self.verb = bool(self.things)
            else:
                self.chunk.append(word)
        self._close()
        becomes = self.values[-1] if self.values and self.kind in ("color", "material") else None
        return Clause(
            self.kind, tuple(self.things), tuple(self.subjects), tuple(self.relations), tuple(self.places), becomes
        )

    def _close(self) -> None:
        """End the noun phrase, if there is one."""
        if not self.chunk:
            return
        *attributes, noun = self.chunk
        self.chunk = []
        preposition, self.preposition = self.preposition, None
        if noun in _ABSTRACT or noun in COLORS | MATERIALS | SIZES:
            told = [word for word in (*attributes, noun) if word in COLORS | MATERIALS | SIZES]
            self._value(told)
            return
        number = len(self.things)
        self.things.append(Thing(_singular(noun), frozenset(attributes)))
        if not self.subjects or (self.joined and preposition is None):
            self.subjects.append(number)
        elif preposition is not None and self.last is not None:
            where = self.places if self.verb else self.relations
            where.append((self.subjects[0] if self.verb else self.last, preposition.replace("_", " "), number))
        self.last, self.joined = number, False

    def _value(self, told: list[str]) -> None:
        """A colour, material or size that stands alone: what the subject becomes, or else what it is."""
        if self.kind in ("color", "material"):
            self.values += told
        elif self.last is not None:
            thing = self.things[self.last]
            self.things[self.last] = Thing(thing.noun, thing.attributes | frozenset(told))


def _breaks(word: str, opens: bool) -> bool:
    """Whether a noun phrase ends here; a participle right after an article (``opens``) is an attribute."""
    if word in COLORS or word in MATERIALS or word in _NOUNS:
        return False
    return word in _BREAKS or (not opens and _ENDING.match(word) is not None)


def _singular(noun: str) -> str:
    return noun[:-1] if len(noun) > 3 and noun.endswith("s") and not noun.endswith("ss") else noun
