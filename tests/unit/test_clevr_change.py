"""CLEVR-Change's layout on disk: read whole, and every way it can be incomplete is named."""

import json
import shutil
from collections import Counter
from pathlib import Path

import pytest

from procap.datasets.images import read_image
from procap.datasets.rendered import CorpusSettings, write_official_layout
from procap.datasets.scenes.scene import SceneSettings
from procap.errors import BadInput
from procap.steps.corpus import read_corpus

SAMPLE = Path(__file__).parents[2] / ".." / "shared" / "data" / "clevr_change_sample"


@pytest.fixture(scope="module")
def rendered(tmp_path_factory):
    """Ten rendered scenes in the official layout."""
    folder = tmp_path_factory.mktemp("rendered")
    settings = CorpusSettings(5, 10, 32, 1, (0.8, 0.1, 0.1), SceneSettings((3, 3), 0.0, 0.1))
    write_official_layout(folder, settings)
    return folder


@pytest.fixture
def corpus(rendered, tmp_path):
    """A copy to spoil."""
    return shutil.copytree(rendered, tmp_path / "corpus")


def read_pairs(folder, limit=None):
    """As ``prepare`` reads it: files that are missing are named, too."""
    return read_corpus(folder, "clevr_change", limit).pairs


def edit(path, change):
    """Rewrite a JSON file; ``change`` gets its content and may return another."""
    content = json.loads(path.read_text())
    path.write_text(json.dumps(change(content) or content))


def test_pairs_come_in_order_with_their_files_and_what_is_said_of_them(corpus):
    pairs = read_pairs(corpus)
    assert [pair.id for pair in pairs[:4]] == ["000000c", "000000nc", "000001c", "000001nc"]
    assert all(path.is_file() for pair in pairs for path in (pair.before, pair.after))
    assert Counter(pair.change_type for pair in pairs) == {
        "none": 10, "color": 2, "material": 2, "add": 2, "drop": 2, "move": 2
    }  # fmt: skip
    assert Counter(pair.split for pair in pairs) == {"train": 16, "val": 2, "test": 2}
    assert pairs[0].before == pairs[1].before
    assert pairs[0].mask.is_file()
    assert pairs[1].mask is None


def test_a_limit_takes_the_first_pairs_of_every_split_and_asks_for_no_other_files(corpus):
    last = max(pair.id for pair in read_pairs(corpus) if pair.split == "train")
    (corpus / "sc_images" / f"CLEVR_semantic_{last[:6]}.png").unlink()
    pairs = read_pairs(corpus, 5)
    assert Counter(pair.split for pair in pairs) == {"train": 3, "val": 1, "test": 1}
    assert [pair.id for pair in pairs if pair.split == "train"] == ["000000c", "000000nc", "000001c"]
    with pytest.raises(BadInput, match="missing"):
        read_pairs(corpus)


def test_clevr_s_texture_is_our_material_and_without_a_mapping_the_type_is_unknown(corpus):
    wanted = {pair.id: pair.change_type for pair in read_pairs(corpus)}
    edit(corpus / "type_mapping.json", lambda types: {"texture": types.pop("material"), **types})
    assert {pair.id: pair.change_type for pair in read_pairs(corpus)} == wanted
    (corpus / "type_mapping.json").unlink()
    assert {pair.change_type for pair in read_pairs(corpus)} == {"unknown", "none"}


def test_a_scene_may_have_only_one_of_its_pairs(corpus):
    edit(corpus / "no_change_captions.json", lambda captions: captions.pop("CLEVR_default_000004.png") and None)
    (corpus / "nsc_images" / "CLEVR_nonsemantic_000004.png").unlink()
    assert "000004nc" not in [pair.id for pair in read_pairs(corpus)]


@pytest.mark.parametrize("part", ["images/CLEVR_default", "sc_images/CLEVR_semantic", "nsc_images/CLEVR_nonsemantic"])
def test_missing_and_strange_pictures_are_named(corpus, part):
    path = corpus / f"{part}_000003.png"
    stranger = path.with_name(path.name.replace("000003", "000777"))
    stranger.write_bytes(path.read_bytes())
    with pytest.raises(BadInput, match=f"1 pictures have no captions: .*{stranger.name}"):
        read_pairs(corpus)
    stranger.unlink()
    path.unlink()
    with pytest.raises(BadInput, match=f"1 pictures are missing: .*{path.name}"):
        read_pairs(corpus)


@pytest.mark.parametrize(
    ("file", "content", "complaint"),
    [
        ("change_captions.json", "{", "not JSON"),
        ("change_captions.json", "[]", "a list at the top"),
        ("change_captions.json", '{"photo.png": ["a"]}', "photo.png"),
        ("no_change_captions.json", '{"CLEVR_default_000001.png": "a"}', "no list of sentences"),
        ("no_change_captions.json", '{"CLEVR_default_000001.png": ["a"], "CLEVR_default_1.png": ["b"]}', "there twice"),
        ("splits.json", '{"train": [0]}', "not the three splits"),
        ("splits.json", '{"train": [0], "val": [0], "test": []}', "scene 0 is in 'train' and in 'val'"),
        ("splits.json", '{"train": ["0"], "val": [], "test": []}', "'train' has '0'"),
        ("splits.json", '{"train": [0], "val": [1], "test": [2]}', "7 scenes with captions are in no split: 3, 4"),
        ("type_mapping.json", '{"colour": []}', "'colour'"),
    ],
)
def test_a_spoilt_file_is_named_with_what_is_wrong_in_it(corpus, file, content, complaint):
    (corpus / file).write_text(content)
    with pytest.raises(BadInput, match=complaint) as caught:
        read_pairs(corpus)
    assert file in caught.value.where


@pytest.mark.parametrize("file", ["change_captions.json", "no_change_captions.json", "splits.json"])
def test_a_missing_file_is_named(corpus, file):
    (corpus / file).unlink()
    with pytest.raises(BadInput, match=rf"not there[\s\S]*{file}|no {file}"):
        read_pairs(corpus)


def test_a_missing_corpus_is_named(tmp_path):
    with pytest.raises(BadInput, match="not there"):
        read_pairs(tmp_path / "nothing")


@pytest.mark.shared
@pytest.mark.skipif(not SAMPLE.exists(), reason="../shared is not there")
def test_the_real_sample_is_read_whole():
    pairs = read_pairs(SAMPLE)
    assert Counter(pair.change_type for pair in pairs) == {"color": 201, "none": 201}
    assert not any(pair.mask for pair in pairs)
    assert read_image(pairs[0].before).shape == (160, 240, 3)
