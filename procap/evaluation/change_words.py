"""What a sentence says has changed, read from its words: our formulation of a keyword parser.

The first rule that fits decides:

1. No word at all: unknown.
2. It says that nothing changed ("no change", "nothing has changed", "the scene remains the same"): none.
3. Something is there now ("there is now a ...", "a ... is now visible"): add; there is no longer: drop.
4. A verb of becoming (turned, became, changed to, is now, no longer, painted ...) leads to a colour: color, or to a
   material: material. The word after the verb decides, so "the metal cube turned red" is a colour change. The nouns
   decide likewise ("changed its colour", "is made of another material").
5. Words of motion or place ("moved", "changed its location", "is in a different place"): move.
6. Words of vanishing ("is missing", "no longer there", "removed"): drop.
7. Words of appearing ("has been added", "new", "appeared"): add.
8. Else unknown.
"""

import re

from procap.datasets.pairs import NO_CHANGE, UNKNOWN_CHANGE

COLORS = "gray|grey|red|blue|green|brown|purple|cyan|yellow|orange|pink|black|white|colou?rs?|hue"
MATERIALS = "metal|metallic|rubber|matte|shiny|glossy|dull|plastic|materials?|texture|surface"
BECOMING = (
    r"(?:turn(?:s|ed|ing)?|becom(?:es?|ing)|became|chang(?:es?|ed|ing)|switch(?:es|ed)?|swap(?:s|ped)?|went|goes|"
    r"now|no longer|painted|repainted|(?:re)?made|got|has|have|shows|with)"
)
FILLERS = r"(?:from|to|into|in|of|out|a|an|the|its|their|be|been|being|made|looks?|all|another|different|new|other)"
PLACE = r"(?:locations?|positions?|places?|spots?)"
SCENE = r"(?:scene|picture|image|view)"

_BECAME = rf"\b{BECOMING}(?: {FILLERS}){{0,4}} "
_RULES = (
    (
        NO_CHANGE,
        r"\bno (?:\w+ ){0,2}(?:changes?|differences?|modifications?|alterations?)\b",
        r"\bnothing\b(?: \w+){0,3} (?:chang\w+|differ\w*|mov\w+|modified|altered|happened|new|added|removed)\b",
        r"\b(?:remain|stay|is|are|look|seem|appear|keep)(?:s|ed)?(?: to be| exactly| just| all| still| completely)*"
        r"(?: the)?(?: very)? (?:same|identical|unchanged|alike|unaltered|indistinguishable)\b",
        rf"\b(?:same|identical) (?:{SCENE} )?(?:as|to) (?:before|it was|the (?:first|other))\b",
        r"\b(?:not|n't|never)(?: \w+)? chang(?:e|ed)\b",
        r"\bno \w+ (?:is|are|was|were|has|have)(?: been)? (?:different|chang\w+|moved|altered|modified)\b",
        rf"\b(?:same|identical|unchanged) (?:{SCENE}|object)s?$",
    ),
    (
        "add",
        r"\bthere (?:is|are) now\b",
        rf"\bnow (?:visible|there|here|present|appears|in the {SCENE}|part of)\b",
    ),
    ("drop", r"\bthere (?:is|are) no longer\b"),
    (
        "color",
        rf"{_BECAME}(?:{COLORS})\b|\bis (?:{COLORS}) now\b",
        r"\b(?:re)?colou?red\b",
        r"\bcolou?r (?:of .+ )?(?:is|was|has|changed|became|turned)\b",
    ),
    (
        "material",
        rf"{_BECAME}(?:{MATERIALS})\b|\bis (?:{MATERIALS}) now\b",
        r"\b(?:material|texture|surface) (?:of .+ )?(?:is|was|has|changed|became|turned)\b",
    ),
    (
        "move",
        r"\b(?:re)?mov(?:es|ing)\b(?! away from the scene)|\bmoved\b|\bshift(?:s|ed)\b|\brelocated\b|\bdisplaced\b",
        rf"\b(?:different|another|new|other|same) {PLACE}\b|\b{PLACE} (?:has |was |is )?(?:changed|different)\b",
        rf"\bchang(?:es|ed)(?: \w+)? {PLACE}\b",
        r"\bsomewhere else\b|\belsewhere\b",
        r"\bnow (?:further|farther|closer|nearer|left|right|behind|in front|next|to the|on the|at the|at a)\b",
    ),
    (
        "drop",
        r"\bno longer\b|\bany ?more\b|\bmissing\b|\bdisappear(?:s|ed)\b|\bvanish(?:es|ed)\b|\bgone\b",
        r"\bremov(?:es?|ed)\b|\bdeleted\b|\btaken (?:away|out)\b|\btook\b|\bleft the " + SCENE + r"\b",
    ),
    (
        "add",
        r"\badded\b|\badds\b|\bappear(?:s|ed)\b|\bnew\b|\bnewly\b|\bshow(?:s|ed) up\b|\binserted\b|\bintroduced\b",
        r"\bplaced\b|\bput\b|\bcame into\b|\bentered\b|\bjoined\b",
    ),
)
_COMPILED = tuple((kind, re.compile("|".join(patterns))) for kind, *patterns in _RULES)


def change_type(sentence: str) -> str:
    """One of CHANGE_TYPES, NO_CHANGE or UNKNOWN_CHANGE, by the rules above."""
    words = " ".join(re.findall(r"\w+(?:'\w+)?", sentence.lower().replace("n't", " n't")))
    for kind, pattern in _COMPILED:
        if pattern.search(words):
            return kind
    return UNKNOWN_CHANGE


def says_change(sentence: str) -> bool | None:
    """True: it says that something changed, in whatever way; False: that nothing did; None: it has no words."""
    if not re.search(r"\w", sentence):
        return None
    return change_type(sentence) != NO_CHANGE
