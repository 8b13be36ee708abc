import os
import subprocess
import sys
from contextlib import redirect_stdout
from io import StringIO

import numpy as np
import pytest

from procap.errors import BadInput
from procap.evaluation import java, metrics
from procap.evaluation.cider import cider
from procap.evaluation.metrics import own_words, score

needs_java = pytest.mark.skipif(java.why_no_java() is not None, reason="needs Java")
NO_JAVA = "there is no java in this test"

COLORS = ("red", "blue", "green", "gray", "purple")
SENTENCES = [
    "the small cube turned red",
    "There is no change.",
    "",
    "a ball's shadow, it isn't there",
    "the sphere moved",
]
MORE = [["there is no change"], [], ["a café, a left-hand ball"]]
PREDICTIONS = {f"p{n}": text for n, text in enumerate(SENTENCES * 2)}
REFERENCES = {
    f"p{n}": [f"the {color} cube turned {COLORS[n % 3]}", f"the small {color} cube is {COLORS[n % 3]}.", *MORE[n % 3]]
    for n, color in enumerate(COLORS * 2)
}
STANDARD = ("BLEU-1", "BLEU-2", "BLEU-3", "BLEU-4", "METEOR", "ROUGE-L", "CIDEr")
ODD = {
    "empty": "",
    "punctuation": "?! ...",
    "unicode": "le café \u6771\u4eac \U0001f600 a\u0301\u200b\x00 moved",
    "breaks": "the cube\r\nmoved\u2028to\x0b the left\n",
    "bars": "the ||| cube ||| EVAL ||| moved",
    "long": "the small red cube moved and " * 344 + "the end.",
}
GROUPS = {"few": ["p0", "p1", "p3"], "rest": ["p7", "p2", "p9", "p4"], "one": ["p5"]}


@pytest.fixture
def no_java(monkeypatch):
    monkeypatch.setattr(java, "why_no_java", lambda: NO_JAVA)


@pytest.fixture(scope="module")
def meteor():
    """Its start costs seconds; it ends with the tests."""
    with java.Meteor() as meteor:
        yield meteor
        process = meteor.process
    assert process is None or process.poll() is not None


@pytest.fixture(scope="module")
def public_meteor():
    """pycocoevalcap's own."""
    from pycocoevalcap.meteor.meteor import Meteor

    found = Meteor()
    yield found
    found.meteor_p.stdout.close()
    found.meteor_p.stderr.close()


def plain(predictions, references, meteor):
    """The same numbers, from pycocoevalcap's own classes called as its COCOEvalCap does."""
    from pycocoevalcap.bleu.bleu import Bleu
    from pycocoevalcap.cider.cider import Cider
    from pycocoevalcap.rouge.rouge import Rouge
    from pycocoevalcap.tokenizer.ptbtokenizer import PTBTokenizer

    gts = {name: [{"caption": text} for text in texts] for name, texts in references.items()}
    res = {name: [{"caption": text}] for name, text in predictions.items()}
    tokenizer = PTBTokenizer()
    gts, res = tokenizer.tokenize(gts), tokenizer.tokenize(res)
    with redirect_stdout(StringIO()):
        found = dict(zip(("BLEU-1", "BLEU-2", "BLEU-3", "BLEU-4"), Bleu(4).compute_score(gts, res)[0], strict=True))
    for name, measure in (("METEOR", meteor), ("ROUGE-L", Rouge()), ("CIDEr", Cider())):
        found[name] = measure.compute_score(gts, res)[0]
    return {name: 100 * float(value) for name, value in found.items()}


def part(group, of):
    return {name: of[name] for name in GROUPS[group]}


@needs_java
@pytest.mark.slow
def test_it_says_what_pycocoevalcap_says_of_the_whole_and_of_a_group(meteor, public_meteor):
    found = score(PREDICTIONS, REFERENCES, groups=GROUPS, meteor=meteor)
    process = meteor.process
    again = score(PREDICTIONS, REFERENCES, meteor=meteor)
    assert meteor.process is process is not None
    assert process.poll() is None, "kept alive"
    assert again.corpus == found.corpus
    assert {name: found.corpus[name] for name in STANDARD} == pytest.approx(
        plain(PREDICTIONS, REFERENCES, public_meteor), abs=1e-6
    )
    group = dict(found.groups["few"])
    del group["CIDEr"], group["scene_graph_f1"]
    group["CIDEr"] = group.pop("CIDEr-alone")
    few = plain(part("few", PREDICTIONS), part("few", REFERENCES), public_meteor)
    assert group == pytest.approx(few, abs=1e-6)
    assert set(found.skipped) <= {"SPICE", "sentence_similarity"}
    assert set(found.pairs) == set(found.corpus)
    assert all(set(pairs) == set(PREDICTIONS) for pairs in found.pairs.values())


@needs_java
def test_stray_line_breaks_do_not_shift_later_captions():
    captions = ["a cube\rmoved", "the ball\u2028turned red", "", "  two\x85balls \n", "last one"]
    assert java.ptb_lines(captions) == ["a cube moved", "the ball turned red", "", "two balls", "last one"]


@needs_java
def test_own_words_are_the_ptb_tokenizers_words_on_captions_like_ours():
    captions = [
        "The small red cube turned green.",
        "there isn't a left-hand ball; it's no longer there!",
        "nothing has changed, has it?",
        'someone "removed" the cube - it is no longer seen...',
        "the café's ball, which they've moved, is 3 times as big",
    ]
    ptb = [metrics._without_punctuation(line.split(" ")) for line in java.ptb_lines(captions)]
    assert [own_words(caption) for caption in captions] == ptb


def test_without_java_the_rest_is_there_and_the_missing_is_named(no_java):
    found = score(PREDICTIONS, REFERENCES, groups=GROUPS)
    assert set(found.corpus) == {*STANDARD, "scene_graph_f1"} - {"METEOR"}
    assert all(NO_JAVA in found.skipped[name] for name in ("METEOR", "SPICE", "PTBTokenizer"))
    assert "METEOR" not in found.groups["few"]


def odd():
    """Odd sentences among usual ones, with usual references."""
    references = {name: REFERENCES[f"p{n}"] for n, name in enumerate(ODD)}
    return {**PREDICTIONS, **ODD}, {**REFERENCES, **references}


@needs_java
@pytest.mark.slow
def test_odd_sentences_get_the_numbers_of_pycocoevalcap_and_move_no_others(meteor, public_meteor):
    predictions, references = odd()
    assert len(ODD["long"]) > 9_900
    found = score(predictions, references, meteor=meteor)
    # where pycocoevalcap itself can be used: its tokenizer is led astray by line breaks, its METEOR by bars
    plainly = [name for name in predictions if name not in ("breaks", "bars", "unicode")]
    said, told = ({name: texts[name] for name in plainly} for texts in (predictions, references))
    usual = score(said, told, meteor=meteor)
    assert {name: usual.corpus[name] for name in STANDARD} == pytest.approx(
        plain(said, told, public_meteor), abs=1e-6
    )
    for metric in ("ROUGE-L", "METEOR", "scene_graph_f1"):
        for name in plainly:
            assert found.pairs[metric][name] == pytest.approx(usual.pairs[metric][name], abs=1e-9)
        assert all(0 <= value <= 100 for value in found.pairs[metric].values())
    assert found.pairs["METEOR"]["empty"] == found.pairs["ROUGE-L"]["punctuation"] == 0
    assert found.pairs["METEOR"]["breaks"] > 0


def test_odd_sentences_are_scored_without_java(no_java):
    predictions, references = odd()
    found = score(predictions, references)
    assert set(found.pairs["CIDEr"]) == set(predictions)
    assert all(np.isfinite(value) for pairs in found.pairs.values() for value in pairs.values())
    assert all(found.pairs[name]["empty"] == 0 for name in ("CIDEr", "ROUGE-L", "scene_graph_f1"))


def test_spice_runs_where_its_jars_are_and_is_named_where_they_are_not(monkeypatch, tmp_path):
    """A program stands in for Java; it checks what it is called with, and answers in SPICE's form."""
    monkeypatch.setattr(java, "why_no_java", lambda: None)
    monkeypatch.setattr(java, "ptb_lines", lambda captions: [own_words(caption) for caption in captions])
    monkeypatch.setenv("SPICE_JARS", str(tmp_path))
    found = score(PREDICTIONS, REFERENCES, metrics=["SPICE", "ROUGE-L"])
    assert set(found.corpus) == {"ROUGE-L"}
    assert "SPICE_JARS lacks stanford-corenlp-3.6.0.jar and" in found.skipped["SPICE"]
    for name in java.MODELS:
        (tmp_path / name).touch()
    asked = []
    real = subprocess.run

    def run(command, **rest):
        asked.append(command)
        return real([sys.executable, "-c", SPICE, *command], **rest)

    monkeypatch.setattr(subprocess, "run", run)
    found = score(PREDICTIONS, REFERENCES, metrics=["SPICE"])
    path = asked[0][asked[0].index("-cp") + 1].split(os.pathsep)
    assert {str(tmp_path / name) for name in java.MODELS} < set(path)
    assert found.pairs["SPICE"]["p0"] == pytest.approx(100 * len(own_words(PREDICTIONS["p0"])) / 200)
    assert found.pairs["SPICE"]["p2"] == 0, "SPICE says NaN of no words"
    assert not found.skipped
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 1))
    with pytest.raises(BadInput, match="SPICE did not do its work: exit status 1") as caught:
        score(PREDICTIONS, REFERENCES, metrics=["SPICE"])
    assert "without its jars" in caught.value.do


SPICE = """
import json, sys
question, answer = (sys.argv[sys.argv.index(name) + 1] for name in ("edu.anu.spice.SpiceScorer", "-out"))
items = json.load(open(question))
assert all(set(item) == {"image_id", "test", "refs"} for item in items)
f = lambda text: len(text) / 200 if text else float("nan")
found = [{"image_id": item["image_id"], "scores": {"All": {"f": f(item["test"])}}} for item in items]
json.dump(found, open(answer, "w"))
"""


def test_similarity_is_the_cosine_to_the_nearest_reference(no_java):
    vectors = {"a": [1.0, 0.0], "b": [0.6, 0.8], "c": [0.0, 1.0], "d": [-1.0, 0.0], "": [1.0, 0.0]}
    asked = []

    def embed(sentences):
        asked.append(list(sentences))
        return np.array([vectors[text] for text in sentences])

    said, references = {"x": "a", "y": "a", "z": ""}, {"x": ["c", "b"], "y": ["d"], "z": ["a"]}
    found = score(said, references, metrics=["sentence_similarity"], groups={"one": ["x"]}, embed=embed)
    assert found.pairs["sentence_similarity"] == pytest.approx({"x": 60, "y": 0, "z": 0})
    assert found.corpus["sentence_similarity"] == pytest.approx(20)
    assert found.groups["one"]["sentence_similarity"] == pytest.approx(60)
    assert [len(set(texts)) == len(texts) for texts in asked] == [True]
    named = score(said, references, metrics=["sentence_similarity"]).skipped
    assert "evaluate.sentence_model" in named["sentence_similarity"]


def test_cider_without_java_is_the_same_number(no_java):
    predictions = {name: own_words(text) for name, text in PREDICTIONS.items()}
    references = {name: [own_words(text) for text in texts] for name, texts in REFERENCES.items()}
    corpus, pairs = cider(predictions, references)
    full = score(PREDICTIONS, REFERENCES, metrics=["CIDEr"])
    assert corpus == pytest.approx(full.corpus["CIDEr"], abs=1e-9)
    assert pairs == pytest.approx(full.pairs["CIDEr"], abs=1e-9)


def test_groups_add_up_to_the_whole(no_java):
    halves = {"a": list(PREDICTIONS)[:3], "b": list(PREDICTIONS)[3:]}
    found = score(PREDICTIONS, REFERENCES, groups=halves)
    for metric in ("CIDEr", "ROUGE-L"):
        total = sum(len(halves[name]) * found.groups[name][metric] for name in halves) / len(PREDICTIONS)
        assert total == pytest.approx(found.corpus[metric])


def test_a_cider_that_would_be_zero_for_any_text_is_left_out(no_java):
    alike = {name: ["there is no change", "nothing has changed"] for name in PREDICTIONS}
    found = score(dict.fromkeys(PREDICTIONS, "there is no change"), alike)
    assert "CIDEr" not in found.corpus
    assert "same references" in found.skipped["CIDEr"]
    groups = score(PREDICTIONS, REFERENCES, groups=GROUPS).groups
    assert "CIDEr-alone" in groups["few"]
    assert "CIDEr-alone" not in groups["one"]


def test_a_perfect_prediction_gets_full_marks(no_java):
    found = score({name: texts[0] for name, texts in REFERENCES.items()}, REFERENCES)
    assert found.corpus["BLEU-4"] == pytest.approx(100, abs=1e-3)
    assert found.corpus["ROUGE-L"] == pytest.approx(100)


@pytest.mark.parametrize(("predictions", "references"), [({}, {}), ({"a": "x"}, {"b": ["x"]}), ({"a": "x"}, {"a": []})])
def test_pairs_that_do_not_match_are_refused(predictions, references):
    with pytest.raises(ValueError, match="same pairs"):
        score(predictions, references)


def stand_in(monkeypatch, code):
    """Let a Python program play the part of Java."""
    real = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda command, **rest: real([sys.executable, "-c", code], **rest))


def test_a_silent_meteor_is_given_up(monkeypatch):
    stand_in(monkeypatch, "import time; time.sleep(60)")
    with java.Meteor(timeout=0.3) as meteor:
        process = meteor.start()
        with pytest.raises(java.JavaFailed, match=r"within 0\.3 s"):
            meteor.statistics("a", ["b"])
    assert process.returncode is not None


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("print('1.0'); raise SystemExit(1)", "the process ended early"),
        ("import time; time.sleep(60)", "no answer within"),
    ],
)
def test_a_meteor_that_dies_or_hangs_is_an_error_that_says_what_to_do(monkeypatch, code, reason):
    monkeypatch.setattr(java, "why_no_java", lambda: None)
    monkeypatch.setattr(java, "ptb_lines", lambda captions: [own_words(caption) for caption in captions])
    stand_in(monkeypatch, code)
    complaint = pytest.raises(BadInput, match=f"METEOR did not do its work: {reason}")
    with java.Meteor(timeout=0.3) as meteor, complaint as caught:
        score(PREDICTIONS, REFERENCES, metrics=["METEOR", "ROUGE-L"], meteor=meteor)
    assert "2 GB of memory" in caught.value.expected
    assert "without `java` on PATH it is left out" in caught.value.do


def test_a_killed_tokenizer_is_an_error_and_not_another_way_to_split(monkeypatch):
    monkeypatch.setattr(java, "why_no_java", lambda: None)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], -9, stdout=b""))
    with pytest.raises(BadInput, match="the PTB tokenizer did not do its work: exit status -9"):
        score(PREDICTIONS, REFERENCES, metrics=["ROUGE-L"])


def test_a_tokenizer_that_loses_a_line_is_not_trusted(monkeypatch):
    done = subprocess.CompletedProcess([], 0, stdout=b"a cube\nend\n", stderr=b"")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    with pytest.raises(java.JavaFailed, match="1 lines for 2 captions"):
        java.ptb_lines(["a cube", "a ball"])


def test_java_that_fails_or_is_missing_is_said(monkeypatch):
    monkeypatch.setattr(java.shutil, "which", lambda _: None)
    assert "install a Java runtime" in java.why_no_java()
    monkeypatch.setattr(java.shutil, "which", lambda _: "java")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 1))
    assert "mend" in java.why_no_java()
