"""sample: every similarity from frames to keyframes, against what it is defined by; what it refuses; the midpoint."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from procap.checkpoints.released_scores import read_released_scores
from procap.config import check_params, load_params
from procap.datasets.pairs import Pairs
from procap.datasets.pictures import to_numbers
from procap.datasets.shards import Shards
from procap.datasets.vocabulary import Vocabulary
from procap.errors import BadInput
from procap.evaluation.midpoint import distance_to, nearness
from procap.files import folder_digest, write_json
from procap.procedure.keyframes import chances, confidence, imbalance, mixed_imbalance
from procap.report import Silent
from procap.steps import interpolate, sample
from procap.steps.similarities import similarities
from tests.toy import CAPTIONS, toy_prepared

PARAMS = load_params(Path(__file__).parents[2] / "params.yaml")
FRAMES = 3


def params(**changes):
    changes = {"kept": 2, "draws": 3, "batch": 16, "draw": "multinomial", "temperature": 1.0} | changes
    two_tower = PARAMS.sample.two_tower.model_copy(update={"steps": 30, "batch": 8, "width": 16})
    settings = PARAMS.sample.model_copy(update={"similarity": "visual", "two_tower": two_tower, **changes})
    imagined = PARAMS.interpolate.model_copy(update={"method": "crossfade", "frames": FRAMES, "measured": 0})
    return PARAMS.model_copy(update={"sample": settings, "interpolate": imagined})


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    data = tmp_path_factory.mktemp("sample") / "data"
    toy_prepared(data / "prepare", pairs=16, truth=FRAMES)
    sentences = [sentence for each in CAPTIONS.values() for sentence in each]
    write_json(data / "prepare" / "vocabulary.json", Vocabulary.build(sentences, 1, 12).to_json())
    interpolate.run(params(), data)
    return data


@pytest.fixture(scope="module")
def clip_folder(tmp_path_factory):
    """A CLIP of random weights, two layers a side, with a tokenizer of letters."""
    from transformers import CLIPConfig, CLIPModel, CLIPTokenizer

    folder = tmp_path_factory.mktemp("clip")
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = [*letters, *(f"{letter}</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
    vocabulary = {word: number for number, word in enumerate(words)}
    CLIPTokenizer(vocab=vocabulary, merges=[]).save_pretrained(folder)
    sides = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = CLIPConfig(
        text_config=sides | {"vocab_size": len(words), "max_position_embeddings": 20, "eos_token_id": len(words) - 1},
        vision_config=sides | {"image_size": 32, "patch_size": 8},
        projection_dim=12,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        CLIPModel(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def vit_folder(tmp_path_factory):
    from transformers import ViTConfig, ViTModel

    folder = tmp_path_factory.mktemp("vit")
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        ViTModel(ViTConfig(**sizes, image_size=32, patch_size=8)).save_pretrained(folder)
    return folder


def summary(data: Path) -> dict:
    return json.loads((data / "sample" / "summary.json").read_text(encoding="utf-8"))


def changed_rows(data: Path) -> np.ndarray:
    return np.array(Pairs.read(data / "prepare").split("train", "val").table["change_type"] != "none")


class Heard(Silent):
    def __init__(self) -> None:
        self.numbers: dict[str, float] = {}
        self.pictures: list[str] = []

    def metrics(self, values, step=None) -> None:
        self.numbers |= values

    def picture(self, name, image) -> None:
        self.pictures.append(name)


@pytest.mark.parametrize("similarity", ["visual", "visual_text", "mixed", "random"])
def test_every_similarity_draws_for_each_pair_and_gives_the_same_bytes_again(made, similarity):
    chosen, heard = params(similarity=similarity), Heard()
    sample.run(chosen, made, report=heard)
    digest = folder_digest(made / "sample")
    weights, drawn = np.load(made / "sample" / "weights.npy"), np.load(made / "sample" / "kept.npy")
    assert weights.shape == (12, FRAMES)
    assert weights.dtype == np.float32
    np.testing.assert_allclose(weights.sum(axis=1), 1, rtol=1e-5)
    assert drawn.shape == (3, 12, 2)
    assert drawn.dtype == np.int16
    assert not np.array_equal(drawn[0], drawn[1])
    assert heard.pictures == ["confidence.png"]
    assert {"midpoint_chosen", "midpoint_nearer", "time_from_middle", "weight_spread"} <= set(heard.numbers)
    sample.run(chosen, made)
    assert folder_digest(made / "sample") == digest
    state = made.parent / ".state" / "sample"
    assert not (state.exists() and list(state.iterdir()))


def test_none_kept_is_allowed(made):
    sample.run(params(kept=0), made)
    assert np.load(made / "sample" / "kept.npy").shape == (3, 12, 0)
    assert "midpoint_distance" not in summary(made)


def test_random_gives_every_frame_the_same_chance_and_asks_no_network(made):
    sample.run(params(similarity="random", temperature=1e-6), made)
    np.testing.assert_allclose(np.load(made / "sample" / "weights.npy"), 1 / FRAMES, rtol=1e-6)
    assert not [name for name in summary(made) if "similarity" in name]


def test_cold_draws_are_all_the_best_frames(made):
    sample.run(params(temperature=1e-9), made)
    cold = np.load(made / "sample" / "kept.npy")
    sample.run(params(draw="top"), made)
    best = np.load(made / "sample" / "kept.npy")
    changed = changed_rows(made)  # the others have frames that are equal to the last bit
    assert np.array_equal(cold[:, changed], best[:, changed])
    assert (best == best[0]).all()
    sample.run(params(temperature=1.0), made)
    assert not np.array_equal(best[:, changed], np.load(made / "sample" / "kept.npy")[:, changed])


def test_a_frame_is_most_similar_to_the_end_it_lies_next_to(made):
    before, after = similarities(params(), made, "visual", Silent())
    np.testing.assert_allclose(before[:, 0], 1, atol=1e-5)
    np.testing.assert_allclose(after[:, -1], 1, atol=1e-5)
    changed = changed_rows(made)
    assert (before[changed, 1] > after[changed, 1]).float().mean() > 0.8
    assert (before[changed, -2] < after[changed, -2]).float().mean() > 0.8


@pytest.mark.parametrize("kind", ["visual", "visual_text"])
def test_scores_do_not_depend_on_the_batch(made, kind, clip_folder):
    one, all_at_once = (
        similarities(params(batch=batch, visual_text_checkpoint=str(clip_folder)), made, kind, Silent())
        for batch in (1, 500)
    )
    for a, b in zip(one, all_at_once, strict=True):
        torch.testing.assert_close(a, b, atol=2e-6, rtol=0)


def numbers_of(pictures: np.ndarray, mean: list[float], deviation: list[float]) -> torch.Tensor:
    return (to_numbers(pictures) - torch.tensor(mean).reshape(3, 1, 1)) / torch.tensor(deviation).reshape(3, 1, 1)


def test_a_vit_of_a_folder_compares_class_tokens(made, vit_folder):
    from transformers import AutoModel

    found = similarities(params(visual_checkpoint=str(vit_folder)), made, "visual", Silent())
    pairs, inner = Pairs.read(made / "prepare").split("train", "val"), Shards(made / "interpolate" / "frames", "frames")
    net = AutoModel.from_pretrained(vit_folder)
    with torch.inference_mode():
        frame, before, after = (
            net(numbers_of(each, [0.485, 0.456, 0.406], [0.229, 0.224, 0.225])).last_hidden_state[:, 0]
            for each in (inner[:][:, 1], pairs.before(), pairs.after())
        )
    torch.testing.assert_close(found[0][:, 2], torch.cosine_similarity(frame, before), atol=1e-5, rtol=0)
    torch.testing.assert_close(found[1][:, 2], torch.cosine_similarity(frame, after), atol=1e-5, rtol=0)
    preprocessor = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}
    try:
        write_json(vit_folder / "preprocessor_config.json", preprocessor)
        other = similarities(params(visual_checkpoint=str(vit_folder)), made, "visual", Silent())
    finally:
        (vit_folder / "preprocessor_config.json").unlink()
    assert not torch.allclose(other[0][:, 2], found[0][:, 2], atol=1e-5)


def test_a_clip_of_a_folder_measures_the_way_along_the_captions(made, clip_folder):
    from transformers import AutoModel, AutoTokenizer

    settings = params(visual_text_checkpoint=str(clip_folder))
    before, after = similarities(settings, made, "visual_text", Silent())
    torch.testing.assert_close(before[:, 0], torch.zeros(12))
    torch.testing.assert_close(before + after, before[:, -1:].expand_as(before), atol=1e-6, rtol=0)
    pairs, net = Pairs.read(made / "prepare").split("train", "val"), AutoModel.from_pretrained(clip_folder)
    tokenizer, clip = AutoTokenizer.from_pretrained(clip_folder), [
        [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]
    ]  # fmt: skip
    row = 3
    with torch.inference_mode():
        tokens = tokenizer(
            list(pairs.table["captions"][row]), padding=True, truncation=True, max_length=20, return_tensors="pt"
        )
        pictures = numbers_of(np.stack([pairs.before()[row], pairs.after()[row]]), *clip)
        out = net(**tokens, pixel_values=pictures)
        expected = (out.text_embeds @ (out.image_embeds[1] - out.image_embeds[0])).mean()
    torch.testing.assert_close(before[row, -1], expected, atol=1e-6, rtol=1e-4)


def test_the_two_tower_model_learns_which_captions_fit(made):
    heard = Heard()
    settings = params()
    two_tower = settings.sample.two_tower.model_copy(update={"steps": 150})
    longer = settings.model_copy(update={"sample": settings.sample.model_copy(update={"two_tower": two_tower})})
    before, after = similarities(longer, made, "visual_text", heard)
    assert heard.numbers["val_matched"] > heard.numbers["val_matched_by_chance"]
    train = (Pairs.read(made / "prepare").split("train", "val").table["split"] == "train").to_numpy()
    rows = changed_rows(made) & train
    assert (before[rows, -1] > before[rows, 0] + 0.1).all(), "before and after fit the caption, before twice does not"
    torch.testing.assert_close(before[:, -1], after[:, 0])


def released(ids: list[str], frames: int = 5, seed: int = 0, clevr: bool = False) -> dict:
    draw = np.random.default_rng(seed)
    content: dict = {}
    for name in ids:
        entry = {key: draw.random((3, frames)).tolist() for key in ("bef_inter_sim", "inter_aft_sim")}
        entry |= {key: draw.random(frames).tolist() for key in ("bef_inter_dino_score", "inter_aft_dino_score")}
        if clevr:
            part = "nsc_sim_matrixes" if name.endswith("nc") else "sc_sim_matrixes"
            content.setdefault(f"{name.rstrip('nc')}.png", {})[part] = entry
        else:
            content[name] = entry
    return content


@pytest.mark.parametrize("clevr", [False, True])
def test_released_scores_are_found_by_pair_and_averaged_over_captions(tmp_path, clevr):
    ids = ["000001c", "000001nc", "000020c"]
    write_json(tmp_path / "scores.json", released(ids, clevr=clevr))
    content = released(ids)
    for kind, keys in (
        ("visual_text", ("bef_inter_sim", "inter_aft_sim")),
        ("visual", ("bef_inter_dino_score", "inter_aft_dino_score")),
    ):
        found = read_released_scores(tmp_path / "scores.json", ids[::-1], kind, 5)
        for values, key in zip(found, keys, strict=True):
            expected = [np.atleast_2d(content[name][key]).mean(axis=0) for name in ids[::-1]]
            np.testing.assert_allclose(values, np.array(expected), rtol=1e-6)


def test_the_step_draws_by_released_scores(made, tmp_path):
    ids = Pairs.read(made / "prepare").split("train", "val").table["id"].tolist()
    write_json(tmp_path / "scores.json", released(ids, FRAMES + 2))
    sample.run(params(similarity="mixed", scores=str(tmp_path / "scores.json")), made)
    parts = [
        imbalance(*(torch.from_numpy(each) for each in read_released_scores(tmp_path / "scores.json", ids, kind, 5)))
        for kind in ("visual_text", "visual")
    ]
    expected = confidence(mixed_imbalance(*parts, *((float(part.min()), float(part.max())) for part in parts)))
    np.testing.assert_allclose(np.load(made / "sample" / "weights.npy"), chances(expected, 1.0), rtol=1e-5)


def broken(entry: dict) -> dict:
    return {"p": {"bef_inter_sim": [[0.5] * 5], "inter_aft_sim": [[0.5] * 5]} | entry}


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ({}, "pair 'p' has no scores"),
        ([], "a list at the top"),
        ({"p": {"bef_inter_sim": [[0.5] * 5]}}, "no 'inter_aft_sim'"),
        (broken({"bef_inter_sim": [[0.5] * 9]}), r"\(1, 9\)"),
        (broken({"bef_inter_sim": [[0.5] * 5, [0.5]]}), "no table of numbers"),
        (broken({"bef_inter_sim": [["a"] * 5]}), "no table of numbers"),
        (broken({"bef_inter_sim": [[float("nan")] * 5]}), "finite"),
        (broken({"bef_inter_sim": []}), "shape"),
    ],
)
def test_released_scores_that_do_not_fit_are_refused(tmp_path, content, complaint):
    (tmp_path / "scores.json").write_text(json.dumps(content))
    with pytest.raises(BadInput, match=complaint):
        read_released_scores(tmp_path / "scores.json", ["p"], "visual_text", 5)


def test_folders_that_do_not_fit_are_refused(made, tmp_path, vit_folder):
    (tmp_path / "empty").mkdir()
    for folder in (tmp_path / "empty", tmp_path / "nowhere"):
        with pytest.raises(BadInput, match=r"sample\.visual_checkpoint"):
            similarities(params(visual_checkpoint=str(folder)), made, "visual", Silent())
    with pytest.raises(BadInput, match="no text side"):
        similarities(params(visual_text_checkpoint=str(vit_folder)), made, "visual_text", Silent())
    with pytest.raises(BadInput, match="cannot be read"):
        read_released_scores(tmp_path / "none.json", ["p"], "visual", 5)


@pytest.mark.parametrize(
    "change", [{"temperature": 0.0}, {"similarity": "random", "draw": "top"}, {"similarity": "clip"}]
)
def test_settings_that_mean_nothing_are_refused(change):
    raw = PARAMS.model_dump(mode="json", by_alias=True)
    with pytest.raises(BadInput, match="sample"):
        check_params(raw | {"sample": raw["sample"] | change}, "params.yaml")


def test_nearness_of_frames_whose_distance_is_known():
    distance = np.array([[3.0, 1.0, 2.0], [5.0, 0.0, 4.0], [3.0, 3.0, 3.0]])
    kept = np.array([[[1, 2], [2, 3], [1, 3]], [[2, 3], [2, 3], [1, 2]]], np.int16)
    found = nearness(distance, kept, np.array([0, 0, 1]), np.random.default_rng(0))
    assert found["random"] == pytest.approx((2 + 3 + 3) / 3)
    assert found["chosen"] == pytest.approx((1.75 + 2 + 3) / 3)
    assert found["nearer"] == pytest.approx(found["random"] - found["chosen"])
    assert found["middle"] == pytest.approx(((1 + 3) / 2 + 2.5 + 3) / 3)
    assert found["interval"][0] <= found["nearer"] <= found["interval"][1]
    assert found["interval"][0] == 0, "a cluster of pairs that gain nothing"


def test_distance_is_the_root_mean_square_over_a_frame():
    picture = np.full((2, 4, 4, 3), 100, np.uint8)
    frames = np.stack([picture, picture - 51, picture + 102], axis=1)
    frames[1, 2] = picture[1]
    frames[1, 2, :2] += 102
    np.testing.assert_allclose(distance_to(picture, frames), [[0, 0.2, 0.4], [0, 0.2, 0.4 / 2**0.5]], rtol=1e-6)


def test_the_midpoint_is_measured_on_changed_pairs_where_the_truth_is_known(made, tmp_path):
    sample.run(params(draw="top", kept=1), made)
    found = summary(made)
    inner, truth = Shards(made / "interpolate" / "frames", "frames"), Shards(made / "prepare", "truth")
    table = Pairs.read(made / "prepare").table
    rows = np.flatnonzero((table["split"] != "test").to_numpy())
    changed = np.flatnonzero((table["change_type"].iloc[rows] != "none").to_numpy())
    kept = np.load(made / "sample" / "kept.npy")[0, :, 0]
    by_hand = [
        np.sqrt(np.mean((inner[int(row)][kept[row] - 1].astype(float) - truth[int(rows[row])][1]) ** 2)) / 255
        for row in changed
    ]
    assert found["midpoint_distance"]["chosen"] == pytest.approx(np.mean(by_hand), abs=2e-6)
    assert found["midpoint_distance"]["middle"] < 0.01, "this truth is a crossfade, too"
    assert found["midpoint_distance"]["random"] > 0.02
    toy_prepared(tmp_path / "data" / "prepare", pairs=8)
    interpolate.run(params(), tmp_path / "data")
    sample.run(params(), tmp_path / "data")
    assert "midpoint_distance" not in summary(tmp_path / "data")
