import json
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from procap.datasets.pairs import NO_CHANGE
from procap.datasets.scenes.language import CHANGED, RELATIONS, UNCHANGED
from procap.evaluation.change_words import change_type, says_change
from tests.toy import CAPTIONS

SIZES, COLORS = ("small", "large"), ("gray", "red", "blue", "green", "brown", "purple", "cyan", "yellow")
MATERIALS, SHAPES = ("rubber", "metal"), ("cube", "sphere", "cylinder")
NOUNS = [" ".join(words) for words in product((*SIZES, ""), (*COLORS, ""), (*MATERIALS, ""), SHAPES)]

SAID = {
    "color": """the small brown cube turned green
        the small brown metal cube changed to red
        the metal cube became a red one
        the red cube is no longer red
        the big rubber ball changed its color
        the colour of the cube has changed
        the metal sphere is now a blue metal sphere
        The cube changed from red to blue.""",
    "material": """the red cube turned metal
        the blue ball became metallic
        the cube is now made of rubber
        the ball is now shiny
        the cube changed from metal to rubber
        the ball changed its material
        the material of the cube is different""",
    "add": """a small red cube has been added
        there is a new blue ball
        a new metal cube appeared
        a new cube is visible
        the tiny cube has been newly placed
        a red cube shows up
        there is now a red ball left of the cube
        a big ball is now in the scene""",
    "drop": """the small cube is missing
        the cube is no longer there
        someone removed the cube
        there is no longer a red cube
        there is no cube any more
        the red ball behind the cube is gone
        the metal cube that was left of the ball has been taken away""",
    "move": """the cube changed its location
        the cube has been moved
        the cube is in a different location
        the cube was moved from its original location
        someone changed the location of the cube
        the red cube moved to a new place
        the cube is now further left
        the small red ball is no longer in the same place""",
    "none": """there is no change
        nothing has changed
        the scene remains the same
        no change was made
        the scene is the same as before
        the two scenes seem identical
        no change has occurred
        the scene did not change
        The scene hasn't changed!""",
    "unknown": """the cube
        is the the the
        two people are walking""",
}


@pytest.mark.parametrize(("kind", "sentences"), SAID.items())
def test_what_people_and_clevr_change_say(kind, sentences):
    wrong = {said: change_type(said) for said in sentences.splitlines() if change_type(said) != kind}
    assert not wrong


@pytest.mark.parametrize(("kind", "template"), [(kind, one) for kind, many in CHANGED.items() for one in many])
def test_every_template_of_the_rendered_scenes_with_any_object_in_it(kind, template):
    draw = np.random.default_rng(0)
    for _ in range(300):
        one, other = (" ".join(NOUNS[i].split()) for i in draw.integers(len(NOUNS), size=2))
        words = f"{one} {draw.choice(list(RELATIONS))} the {other}" if draw.random() < 0.5 else one
        said = template.format(
            thing=f"the {words}", new=words, color=draw.choice(COLORS), material=draw.choice(MATERIALS)
        )
        assert change_type(said) == kind, said


@pytest.mark.parametrize("sentence", UNCHANGED)
def test_every_sentence_for_no_change(sentence):
    assert change_type(sentence) == NO_CHANGE


@pytest.mark.parametrize("kind", CAPTIONS)
def test_the_toy_corpus(kind):
    assert {change_type(said) for said in CAPTIONS[kind]} == {kind}


@pytest.mark.shared
def test_the_sample_of_clevr_change():
    folder = Path(__file__).parents[2] / ".." / "shared" / "data" / "clevr_change_sample"
    if not folder.exists():
        pytest.skip("../shared is not here")
    types = {
        name: kind for kind, names in json.loads((folder / "type_mapping.json").read_text()).items() for name in names
    }
    for name, sentences in json.loads((folder / "change_captions.json").read_text()).items():
        assert {change_type(said) for said in sentences} == {types[name]}
    for sentences in json.loads((folder / "no_change_captions.json").read_text()).values():
        assert {change_type(said) for said in sentences} == {NO_CHANGE}


def test_a_sentence_says_change_no_change_or_nothing_at_all():
    assert says_change("two people are walking") is True
    assert says_change("there is no change") is False
    assert says_change(" .") is None
