"""Words and their numbers."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from procap.datasets.vocabulary import BOS, EOS, PAD, SPECIALS, UNK, Vocabulary, sequence_length, tokenize
from procap.errors import BadInput

CAPTIONS = ["the red cube turned blue", "the cube is gone", "Nothing changed."]
VOCABULARY = Vocabulary.build(CAPTIONS, 1, 8)


def test_the_marks_have_the_reference_s_numbers():
    assert {mark: number for number, mark in enumerate(SPECIALS)} == {
        "[PAD]": 0, "[CLS]": 1, "[SEP]": 2, "[VID]": 3, "[BOS]": 4, "[EOS]": 5, "[UNK]": 6, "[MASK]": 7
    }  # fmt: skip
    assert min(VOCABULARY.numbers.values()) == 8
    assert len(VOCABULARY) == 8 + len(VOCABULARY.words)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("The red cube, isn't there any more!", ["the", "red", "cube", "is", "n't", "there", "any", "more"]),
        ("it\u2019s a well-known 3.5 metre T-shirt", ["it", "'s", "a", "well-known", "3.5", "metre", "t-shirt"]),
        ("  caf\u00e9\r\n\u2028(new) [UNK] 'quoted' ", ["caf\u00e9", "new", "unk", "quoted"]),
        ("can't won't", ["ca", "n't", "wo", "n't"]),
        ("... ?!", []),
        ("", []),
    ],
)
def test_sentences_are_split_about_as_the_penn_treebank_does(text, tokens):
    assert tokenize(text) == tokens


@settings(max_examples=100, deadline=None)
@given(st.text("abZÉ'’nt19.,-_ !?[]\n", max_size=20))
def test_tokens_have_neither_space_nor_marks_and_are_found_again(text):
    tokens = tokenize(text)
    assert all((token and not set(token) & set(' \n\t[],.!?"')) or "." in token or "," in token for token in tokens)
    assert tokenize(" ".join(tokens)) == tokens


def test_the_order_of_captions_does_not_matter_and_rare_words_are_left_out():
    assert Vocabulary.build(CAPTIONS[::-1], 1, 8) == VOCABULARY
    assert list(VOCABULARY.words) == sorted(VOCABULARY.words)
    assert Vocabulary.build(CAPTIONS, 2, 8).words == ("cube", "the")


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from(VOCABULARY.words), max_size=6))
def test_known_sentences_come_back(words):
    ids = VOCABULARY.encode(" ".join(words))
    assert ids.shape == (8,)
    assert ids[0] == BOS
    assert ids[len(words) + 1] == EOS
    assert (ids[len(words) + 2 :] == PAD).all()
    assert VOCABULARY.decode(ids) == " ".join(words)


def test_an_unknown_word_is_marked_and_stays_visible():
    ids = VOCABULARY.encode("the purple cube")
    assert ids[2] == UNK
    assert VOCABULARY.decode(ids) == "the [UNK] cube"


def test_nothing_after_the_first_end_is_read():
    red = VOCABULARY.numbers["red"]
    assert VOCABULARY.decode(np.array([BOS, red, EOS, red, red])) == "red"
    assert VOCABULARY.decode([red, PAD, red]) == "red red"


def test_a_long_sentence_is_cut_only_where_that_is_allowed():
    long = "the red cube turned blue is gone"
    with pytest.raises(BadInput, match="7 words"):
        VOCABULARY.encode(long)
    cut = VOCABULARY.encode(long, cut=True)
    assert VOCABULARY.decode(cut) == "the red cube turned blue is"
    assert cut[-1] == EOS
    assert VOCABULARY.encode(long, length=12).shape == (12,)


def test_the_length_follows_from_the_longest_caption_up_to_a_limit():
    assert sequence_length(CAPTIONS, 24) == 7
    assert sequence_length(CAPTIONS, 6) == 6


def test_it_survives_json_and_a_spoilt_file_is_refused():
    value = json.loads(json.dumps(VOCABULARY.to_json()))
    assert Vocabulary.from_json(value) == VOCABULARY
    words = value["words"]
    for spoilt in (
        [],
        {**value, "extra": 1},
        {**value, "specials": list(SPECIALS[::-1])},
        {**value, "words": [*words, words[-1]]},
        {**value, "words": [1]},
        {**value, "length": "8"},
        {**value, "length": 2},
    ):
        with pytest.raises(BadInput, match=r"words\.json"):
            Vocabulary.from_json(spoilt, where="words.json")


RELEASED = {**{mark: number for number, mark in enumerate(SPECIALS)}, "the": 8, "zebra": 9, "apple": 10}


def test_a_released_vocabulary_keeps_every_number(tmp_path):
    (tmp_path / "words.json").write_text(json.dumps(dict(reversed(RELEASED.items()))), encoding="utf-8")
    read = Vocabulary.read_released(tmp_path / "words.json", 8)
    assert read.numbers == {"the": 8, "zebra": 9, "apple": 10}
    assert len(read) == 11
    assert read.decode(read.encode("The apple, the mule")) == "the apple the [UNK]"
    assert Vocabulary.from_json(json.loads(json.dumps(read.to_json()))) == read, "also through a bundle"


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"apple": 9}, "without a gap"),
        ({"apple": 12}, "without a gap"),
        ({"[MASK]": 8, "the": 7}, r"\[MASK\] is 8, not 7"),
        ({"apple": "10"}, "words and numbers"),
        ({"apple": True}, "words and numbers"),
    ],
)
def test_a_released_vocabulary_that_is_none_is_refused(tmp_path, change, complaint):
    (tmp_path / "words.json").write_text(json.dumps(RELEASED | change))
    with pytest.raises(BadInput, match=complaint) as caught:
        Vocabulary.read_released(tmp_path / "words.json", 8)
    assert "words.json" in caught.value.where


def test_a_released_vocabulary_has_to_be_there_and_whole(tmp_path):
    (tmp_path / "cut.json").write_text('{"[PAD]": 0,')
    for name in ("absent.json", "cut.json"):
        with pytest.raises(BadInput, match="cannot be read"):
            Vocabulary.read_released(tmp_path / name, 8)
