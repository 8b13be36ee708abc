"""Which object a caption speaks of, read from its words: our formulation, without a parser.

The object of a sentence is the first phrase after an article that names a thing: the words up to the first that cannot
belong to it (a verb, a preposition...), unless that ends in a word of NO_THING ("the colour of the red cube is ...").
"""

from procap.datasets.vocabulary import tokenize


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


ARTICLES = _words("the a an some this that these those one two three several another")
NO_THING = _words(
    "color colour hue material texture surface place position location spot side scene picture pictures image images "
    "photo view difference differences change changes same top bottom left right front back middle center way"
)
"""What captions speak of that is no object."""
SKIPPED = _words("new newly additional extra other")
"""Between an article and the thing."""
_ENDS = ARTICLES | _words(
    "is are was were be been being has have had does do did will can may not no n't 's now then there here it its "
    "of in on at to from into onto by with without near behind beside between under over above below next around "
    "across along through and or but while as than that which who whose where when also too still just "
    "turned turns became becomes changed changes moved moves went goes appeared appears disappeared disappears "
    "vanished show showed shows looks got made remade painted added removed taken placed put built replaced missing "
    "gone shifted relocated"
)


def object_words(caption: str) -> list[str]:
    """The phrase by which a caption calls the object; empty if it does not."""
    words = tokenize(caption)
    for start, word in enumerate(words):
        if word in ARTICLES:
            phrase: list[str] = []
            for following in words[start + 1 :]:
                if following in _ENDS:
                    break
                if phrase or following not in SKIPPED:
                    phrase.append(following)
            if phrase and phrase[-1] not in NO_THING:
                return phrase
    return []
