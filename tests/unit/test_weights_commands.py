"""`procap import-weights` and `procap export-weights`: what they write is what the rest of the program takes."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from flows.cli import app
from procap.captioners import GREEDY
from procap.captioners.decoding import write_captions
from procap.checkpoints import rife
from procap.checkpoints.procap_released import export_stage1, export_stage2
from procap.checkpoints.vfiformer import load_vfiformer
from procap.checkpoints.vqgan import import_vqgan
from procap.datasets.vocabulary import SPECIALS
from procap.errors import BadInput
from procap.models.build import build
from procap.models.procedure_encoder import ProcedureEncoder
from procap.models.vfiformer import VFIformer
from procap.steps import caption, pretrain
from procap.steps.pretrain import import_encoder, load_encoder
from procap.steps.sources import encoder_config, read_vocabulary
from procap.training.bundle import load_bundle
from procap.training.checkpoint import load_tensors
from procap.training.restore import from_json
from tests.small import generator, shaken, small_vqgan
from tests.steps import tiny_params, tokenised
from tests.unit.test_released_weights import (
    RAW,
    released_file,
    same,
    small_encoder,
    stage1,
    stage2,
    vqgan,
)

__all__ = ["stage1", "stage2", "vqgan"]

WORDS = {mark: number for number, mark in enumerate(SPECIALS)} | {f"w{n}": 27 - n for n in range(8, 20)}
"""As the release: words in any order, each with its number."""


def call(*words: object):
    """Run a command; bad input comes back as the exception that ``main`` prints."""
    result = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def released(stage2, vqgan, tmp_path):
    """(checkpoint, vocabulary)."""
    torch.save(released_file(export_stage2(stage2, vqgan, "here")["model"]), tmp_path / "model.chkpt")
    (tmp_path / "word2idx.json").write_text(json.dumps(WORDS))
    return tmp_path / "model.chkpt", tmp_path / "word2idx.json"


@pytest.fixture
def pictures():
    draw = np.random.default_rng(0)
    return [draw.integers(0, 256, (3, 40, 50, 3), dtype=np.uint8) for _ in range(2)]


def test_a_released_captioner_becomes_a_bundle_that_says_the_same(stage2, vqgan, released, pictures, tmp_path):
    out = tmp_path / "bundle"
    printed = call("import-weights", released[0], "--kind", "stage2", "--vocabulary", released[1], "--out", out)
    assert f"--model {out}" in " ".join(printed.split())
    bundle = load_bundle(out)
    assert bundle.name == "procap"
    assert bundle.vqgan.config == RAW
    assert same(bundle.captioner.network, stage2)
    said = bundle.caption(*pictures)
    theirs = write_captions(stage2.eval(), bundle.features(*pictures), GREEDY)
    words = {number: word for word, number in WORDS.items()}
    assert [one.text for one in said] == [" ".join(words[number] for number in one.ids) for one in theirs]
    assert len({one.text for one in said}) > 1
    assert any(one.text for one in said)
    assert bundle.provenance["imported"] == "model.chkpt"


def test_a_bundle_goes_out_and_comes_back_bit_for_bit(released, tmp_path):
    first, second, file = tmp_path / "first", tmp_path / "second", tmp_path / "files" / "again.chkpt"
    call("import-weights", released[0], "--kind", "stage2", "--vocabulary", released[1], "--out", first)
    assert "stage2" in call("export-weights", first, file)
    call("import-weights", file, "--kind", "stage2", "--vocabulary", released[1], "--out", second)
    for name in ("captioner.safetensors", "vqgan.safetensors", "config.json", "vocabulary.json"):
        assert (first / name).read_bytes() == (second / name).read_bytes()
    with pytest.raises(BadInput, match="something is there"):
        call("export-weights", first, file)


def test_nothing_is_left_behind_when_something_does_not_fit(released, tmp_path):
    file, words = released
    here = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(BadInput, match="needs the words"):
        call("import-weights", file, "--kind", "stage2", "--out", tmp_path / "out")
    words.write_text(json.dumps({word: number for word, number in WORDS.items() if number < 19}))
    with pytest.raises(BadInput, match="vocabulary of 19 words, marks included, for a captioner of 20"):
        call("import-weights", file, "--kind", "stage2", "--vocabulary", words, "--out", tmp_path / "out")
    with pytest.raises(BadInput, match="no state_dict of tensors under 'weights' or at the top"):
        call("import-weights", file, "--kind", "stage1", "--out", tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == here
    with pytest.raises(BadInput, match="something is there"):
        call("import-weights", file, "--kind", "stage2", "--vocabulary", words, "--out", tmp_path)


def test_stage_1_out_and_back(stage1, vqgan, tmp_path):
    torch.save(export_stage1(stage1, vqgan, "here"), tmp_path / "dalle.pt")
    call("import-weights", tmp_path / "dalle.pt", "--kind", "stage1", "--out", tmp_path / "a")
    assert "stage1" in call("export-weights", tmp_path / "a", tmp_path / "again.pt")
    call("import-weights", tmp_path / "again.pt", "--kind", "stage1", "--out", tmp_path / "b")
    for name in ("encoder.safetensors", "encoder.json", "vqgan.safetensors", "vqgan.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    (tmp_path / "a" / "vqgan.json").unlink()
    with pytest.raises(BadInput, match="none here"):
        call("export-weights", tmp_path / "a", tmp_path / "third.pt")
    call("export-weights", tmp_path / "a", tmp_path / "third.pt", "--vqgan", tmp_path / "b")


REFERENCE = {
    "pretrain__width": 192, "pretrain__layers": 2, "pretrain__heads": 3, "pretrain__encoder__start": "usual",
    "pretrain__encoder__activation": "quick_gelu", "pretrain__encoder__reserved": True,
    "pretrain__encoder__special_positions": True, "pretrain__encoder__csy_sees": "frames",
    "pretrain__encoder__pads": "placed", "caption__imagining__prompt": "without_align",
    "caption__imagining__prompt_rows": "first", "caption__imagining__mask_rows": "shifted",
}  # fmt: skip


def test_an_imported_stage_1_takes_the_place_of_training(vqgan, tmp_path):
    """The steps pretrain and caption with it, and the table of words that stage 2 reads."""
    data, folder = tmp_path / "data", tmp_path / "stage1"
    params = tiny_params(**REFERENCE, pretrain__checkpoint=str(folder))
    tokenised(data, params)
    words = read_vocabulary(data)
    config = small_encoder(words=words.length, vocabulary=40, width=192, heads=3)
    theirs = shaken(build(lambda: ProcedureEncoder(config), generator()))
    torch.save(export_stage1(theirs, vqgan, "here"), tmp_path / "dalle.pt")
    call("import-weights", tmp_path / "dalle.pt", "--kind", "stage1", "--out", folder)

    pretrain.run(params, data)
    ours = load_encoder(data / "pretrain", encoder_config(params, data, words, params.frames))
    table, before = ours.pop("word_embedding.weight"), dict(theirs.state_dict())
    read = before.pop("word_embedding.weight")
    assert torch.equal(table, torch.cat([read[: len(words)], read[40 : 40 + words.length]]))
    assert all(torch.equal(ours[key], value) for key, value in before.items())
    assert json.loads((data / "pretrain" / "metrics.json").read_text())["msm_loss"] > 0

    caption.run(params, data, captioner="procap")
    assert load_bundle(data / "caption" / "procap" / "bundle").captioner is not None


def test_an_imported_stage_1_of_other_sizes_is_refused(stage1, vqgan, tmp_path):
    torch.save(export_stage1(stage1, vqgan, "here"), tmp_path / "dalle.pt")
    call("import-weights", tmp_path / "dalle.pt", "--kind", "stage1", "--out", tmp_path / "a")
    with pytest.raises(BadInput, match=r"'layers': \(2, 3\)") as caught:
        import_encoder(tmp_path / "a", replace(stage1.config, layers=3, vocabulary=9))
    assert "vocabulary" not in caught.value.what
    with pytest.raises(BadInput, match="no encoder of stage 1"):
        import_encoder(tmp_path, stage1.config)


def test_a_vqgan_s_folder_is_what_the_tokenizer_takes(tmp_path):
    torch.save({"state_dict": small_vqgan().state_dict(), "callbacks": {type: 1}}, tmp_path / "last.ckpt")
    call("import-weights", tmp_path / "last.ckpt", "--kind", "vqgan", "--out", tmp_path / "a")
    assert same(import_vqgan(tmp_path / "a", 32), small_vqgan())


def test_rife_s_weights_in_any_file(tmp_path):
    net = rife.load_rife(torch.device("cpu"))
    state = {f"module.{key}": value for key, value in net.state_dict().items()}
    torch.save(state | {"module.teacher.x": torch.zeros(1)}, tmp_path / "flownet.pkl")
    call("import-weights", tmp_path / "flownet.pkl", "--kind", "rife", "--out", tmp_path / "a")
    assert same(rife.load_rife(torch.device("cpu"), tmp_path / "a"), net)
    torch.save(dict(list(state.items())[1:]), tmp_path / "cut.pkl")
    with pytest.raises(BadInput, match="missing: "):
        call("import-weights", tmp_path / "cut.pkl", "--kind", "rife", "--out", tmp_path / "b")


def test_vfiformer_s_folder_is_what_the_interpolation_takes(tmp_path):
    net = build(VFIformer, generator())
    torch.save({f"module.{key}": value for key, value in net.state_dict().items()}, tmp_path / "net.pth")
    call("import-weights", tmp_path / "net.pth", "--kind", "vfiformer", "--out", tmp_path / "a")
    assert same(load_vfiformer(tmp_path / "a", torch.device("cpu")), net)


def test_an_option_that_a_bundle_should_not_have_is_refused(released, tmp_path):
    call("import-weights", released[0], "--kind", "stage2", "--vocabulary", released[1], "--out", tmp_path / "a")
    bundle = load_bundle(tmp_path / "a")
    kind = type(bundle.captioner).Config
    values = json.loads((tmp_path / "a" / "config.json").read_text())["config"]
    assert from_json(kind, values) == bundle.captioner.network.config
    for change, complaint in (
        ({"encoder": values["encoder"] | {"colour": 1}}, "unknown options of EncoderConfig: colour"),
        ({"decoder": values["decoder"] | {"style": "baroque"}}, "DecoderConfig.style is 'baroque'"),
        ({"encoder": {**values["encoder"], "reserved": 2}}, "EncoderConfig.reserved is 2"),
        ({"encoder": {k: v for k, v in values["encoder"].items() if k != "width"}}, "EncoderConfig.width is None"),
    ):
        with pytest.raises(BadInput, match=complaint):
            from_json(kind, values | change)
    older = {name: value for name, value in values.items() if name != "decoding"}
    assert from_json(kind, older).decoding == "search"
    assert load_tensors(tmp_path / "a" / "captioner.safetensors")[1] is None
