"""Released ProCap weights in and out: every key is accounted for, and nothing changes on the way."""

import argparse
import hashlib
import json
from dataclasses import replace

import pytest
import torch

from procap.checkpoints.procap_released import (
    captioner_weights,
    encoder_weights,
    export_stage1,
    export_stage2,
    import_stage1,
    import_stage2,
    released_captioner,
    released_encoder,
)
from procap.errors import BadInput
from procap.models.build import build
from procap.models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from procap.models.procedure_encoder import EncoderConfig, ProcedureEncoder
from procap.models.vqgan import VQGAN, VQGANConfig
from tests.small import VQGAN_CONFIG, encoder_config, generator, shaken, small_vqgan

RAW = replace(VQGAN_CONFIG, features="raw")
PUBLISHED = VQGANConfig(128, (1, 1, 2, 2, 4), 2, 1024, 256, 224, features="raw")

LISTS = {
    # blocks, decoder layers (0: stage 1), words; keys, sha256 of {key: shape} as JSON; without LPIPS and discriminator
    "stage1_n12": (12, 0, 0, 474, "d1cd67873b47493b6449d19f441775162a2e0703192d4d8544e828e06d3c8378"),
    "stage1_n4": (4, 0, 0, 370, "e628483800361b50ed2f2dda31c438d919a87602cc19e0d10aa7990dc90ae583"),
    "stage1_n2": (2, 0, 0, 344, "6775a649cd623ce21c3bb7bfe2ed138ea0d01f357dd1687852a2e2e068eec378"),
    "stage2_clevr": (12, 2, 80, 519, "e68c7640a7b64f6056e06ce823ce73b1c82fddd7a11383e61040623152a55041"),
    "stage2_spot": (4, 3, 834, 433, "249c9c2afdeb760d7421501f8954fa29788cde2ab2dc8907a8ffa3918f16bb20"),
    "stage2_edit": (12, 2, 524, 519, "34bbae8da4b5e3f077f871f42cc4e8bcda3aea9b64216b674a7bf3846cfa4e88"),
    "stage2_clevr_n2": (2, 2, 80, 389, "96c99a47534b0b47d888745394f180eaf591a53ea03cfc380aa12f723af2bf32"),
}


def small_encoder(**sizes: int) -> EncoderConfig:
    small = {
        "frames": 4, "grid": 4, "feature_width": 8, "codes": 16, "vocabulary": 30, "words": 7, "width": 128,
        "layers": 2, "heads": 2,
    }  # fmt: skip
    return released_encoder(small | sizes)


def small_captioner(vocabulary: int = 20) -> EncoderDecoderConfig:
    sizes = {"vocabulary": vocabulary, "words": 7, "memory_width": 64, "width": 64, "layers": 2, "heads": 1}
    return released_captioner(small_encoder(vocabulary=0), sizes | {"dropout": 0.1})


@pytest.fixture(scope="module")
def vqgan():
    vqgan = small_vqgan()
    vqgan.config = RAW
    return vqgan


@pytest.fixture(scope="module")
def stage1():
    return shaken(build(lambda: ProcedureEncoder(small_encoder()), generator()))


@pytest.fixture(scope="module")
def stage2():
    return shaken(build(lambda: EncoderDecoder(small_captioner()), generator(1)))


def same(a: torch.nn.Module, b: torch.nn.Module) -> bool:
    ours, theirs = a.state_dict(), b.state_dict()
    return ours.keys() == theirs.keys() and all(torch.equal(value, theirs[key]) for key, value in ours.items())


def shapes(state: dict) -> dict[str, list[int]]:
    return {key: list(value.shape) for key, value in state.items()}


@pytest.mark.parametrize("name", LISTS)
def test_the_released_keys_are_what_is_written_and_all_that_is_read(name):
    """On the device ``meta``, where tensors have shapes and no numbers: the published sizes cost nothing."""
    blocks, layers, words, keys, digest = LISTS[name]
    sizes = {
        "frames": 4, "grid": 14, "feature_width": 256, "codes": 1024, "vocabulary": 49408, "words": 24, "width": 768,
        "layers": blocks, "heads": 12,
    }  # fmt: skip
    with torch.device("meta"):
        vqgan = VQGAN(PUBLISHED)
        if layers:
            encoder = released_encoder(sizes | {"vocabulary": 0})
            decoder = {"vocabulary": words, "words": 24, "memory_width": 512, "width": 512, "layers": layers}
            config = released_captioner(encoder, decoder | {"heads": 8, "dropout": 0.1})
            network = EncoderDecoder(config)
            state = export_stage2(network, vqgan, "here")["model"]
            network.load_state_dict(captioner_weights(state, config), assign=True)
        else:
            network = ProcedureEncoder(released_encoder(sizes))
            state = export_stage1(network, vqgan, "here")["weights"]
            network.load_state_dict(encoder_weights(state, network.config), assign=True)
    assert len(state) == keys
    assert hashlib.sha256(json.dumps(shapes(state), sort_keys=True).encode()).hexdigest() == digest


def test_stage_1_comes_back_as_it_went(stage1, vqgan, tmp_path):
    torch.save(export_stage1(stage1, vqgan, "here"), tmp_path / "dalle.pt")
    again, tokenizer = import_stage1(tmp_path / "dalle.pt")
    assert again.config == stage1.config
    assert same(again, stage1)
    assert tokenizer.config == RAW
    assert same(tokenizer, vqgan)
    assert torch.load(tmp_path / "dalle.pt", weights_only=True)["hparams"]["vision_layers"] == 2


def test_stage_2_comes_back_as_it_went(stage2, vqgan, tmp_path):
    torch.save(export_stage2(stage2, vqgan, "here"), tmp_path / "model.chkpt")
    again, tokenizer = import_stage2(tmp_path / "model.chkpt")
    assert again.config == stage2.config
    assert same(again, stage2)
    assert same(tokenizer, vqgan)


def test_what_is_written_besides_weights_is_what_the_reference_code_makes(stage2, vqgan):
    state = export_stage2(stage2, vqgan, "here")["model"]
    mask = state["intermediate_generator.transformer.transformer.resblocks.1.attn_mask"]
    blocked = torch.zeros(74, 74, dtype=torch.bool)
    blocked[8, :8], blocked[9, :9] = True, True
    assert torch.equal(torch.isinf(mask), blocked)
    assert mask[~blocked].eq(0).all()
    assert torch.allclose(state["text_decoder.loss_func.one_hot"], torch.full((1, 20), 0.1 / 19))
    assert state["intermediate_generator.text_emb.weight"][7:].eq(0).all()
    assert state["intermediate_generator.special_emb.weight"][3:].eq(0).all()


class Schedule:
    """As the object in the released stage 2's optimiser."""


def released_file(state: dict, **more: object) -> dict:
    """As the reference code's ``torch.save``: not plain types only."""
    return {"model": state, "opt": argparse.Namespace(seed=52), "epoch": 3, "optimizer": {"t": [Schedule()]}} | more


def old_spelling(state: dict) -> dict:
    return {key.replace("target_pos_emb.weights.", "target_pos_emb.weights_"): value for key, value in state.items()}


def data_parallel(state: dict) -> dict:
    return {f"module.{key}": value for key, value in state.items()}


def with_losses(state: dict) -> dict:
    return state | {"intermediate_generator.vae.model.loss.discriminator.main.0.weight": torch.zeros(3)}


def with_level_attention(state: dict) -> dict:
    return state | {"intermediate_generator.vae.model.encoder.down.3.attn.0.q.weight": torch.zeros(3)}


def without_buffers(state: dict) -> dict:
    unread = ("attn_mask", "one_hot", "image_emb.weight")
    return {key: value for key, value in state.items() if not key.endswith(unread)}


def from_stage_1(state: dict) -> dict:
    """The table of words that a stage 2 has which started from stage 1."""
    table = state["intermediate_generator.text_emb.weight"]
    return state | {"intermediate_generator.text_emb.weight": torch.cat([table, torch.ones(50, 128)])}


def with_24_rows(state: dict) -> dict:
    table = state["intermediate_generator.text_emb.weight"]
    return state | {"intermediate_generator.text_emb.weight": table[:7]}


@pytest.mark.parametrize(
    "spelt",
    [
        old_spelling, data_parallel, with_losses, with_level_attention, without_buffers, from_stage_1, with_24_rows,
        lambda state: data_parallel(old_spelling(state)),
    ],
)  # fmt: skip
def test_every_spelling_of_the_release_is_read(stage2, vqgan, tmp_path, spelt):
    state = spelt(export_stage2(stage2, vqgan, "here")["model"])
    torch.save(released_file(state), tmp_path / "model.chkpt")
    again, tokenizer = import_stage2(tmp_path / "model.chkpt")
    assert same(again, stage2)
    assert same(tokenizer, vqgan)


def test_keys_that_do_not_fit_are_named(stage2, vqgan, tmp_path):
    state = export_stage2(stage2, vqgan, "here")["model"]
    del state["mlp.3.bias"]
    state["text_decoder.decoder.norm.weight"] = torch.zeros(3)
    state["intermediate_generator.text_emb.weight"] = torch.zeros(5, 128)
    state["intermediate_generator.to_logits_rel.1.bias"] = torch.zeros(2)
    torch.save(released_file(state), tmp_path / "model.chkpt")
    with pytest.raises(BadInput) as caught:
        import_stage2(tmp_path / "model.chkpt")
    assert "missing: mlp.3.bias;" in caught.value.what
    assert "unknown: text_decoder.decoder.norm.weight;" in caught.value.what
    assert "intermediate_generator.text_emb.weight (5, 128) for (7, 128)" in caught.value.what
    assert "to_logits_rel.1.bias (2,) for (1,)" in caught.value.what


def test_the_tokenizer_s_keys_are_looked_at_too(stage1, vqgan, tmp_path):
    file = export_stage1(stage1, vqgan, "here")
    del file["weights"]["vae.model.quant_conv.bias"]
    torch.save(file, tmp_path / "dalle.pt")
    with pytest.raises(BadInput, match=r"missing: quant_conv\.bias"):
        import_stage1(tmp_path / "dalle.pt")


def test_one_stage_is_not_the_other(stage1, stage2, vqgan, tmp_path):
    torch.save(export_stage1(stage1, vqgan, "here"), tmp_path / "dalle.pt")
    torch.save(export_stage2(stage2, vqgan, "here"), tmp_path / "model.chkpt")
    with pytest.raises(BadInput, match="no state_dict of tensors"):
        import_stage2(tmp_path / "dalle.pt")
    torch.save(export_stage1(stage1, vqgan, "here")["weights"], tmp_path / "bare.pt")
    with pytest.raises(BadInput, match=r"not a stage 2 of ProCap: intermediate_generator\.image_mask is missing"):
        import_stage2(tmp_path / "bare.pt")
    torch.save(export_stage2(stage2, vqgan, "here")["model"], tmp_path / "bare.pt")
    with pytest.raises(BadInput, match="not a stage 1 of ProCap: image_mask is missing"):
        import_stage1(tmp_path / "bare.pt")


def test_a_checkpoint_without_a_tokenizer_asks_for_one(stage2, vqgan, tmp_path):
    state = export_stage2(stage2, vqgan, "here")["model"]
    torch.save({"model": {key: value for key, value in state.items() if ".vae." not in key}}, tmp_path / "model.chkpt")
    with pytest.raises(BadInput, match="no VQGAN in it") as caught:
        import_stage2(tmp_path / "model.chkpt")
    assert "--vqgan" in caught.value.do
    torch.save({"state_dict": vqgan.state_dict()}, tmp_path / "vqgan.ckpt")
    again, tokenizer = import_stage2(tmp_path / "model.chkpt", tmp_path / "vqgan.ckpt")
    assert same(again, stage2)
    assert same(tokenizer, vqgan)


def test_a_tokenizer_of_other_sizes_is_refused(stage2, vqgan, tmp_path):
    torch.save(export_stage2(stage2, vqgan, "here"), tmp_path / "model.chkpt")
    other = build(lambda: VQGAN(replace(VQGAN_CONFIG, codes=5)), generator())
    torch.save({"state_dict": other.state_dict()}, tmp_path / "vqgan.ckpt")
    with pytest.raises(BadInput, match="features of 8 and 5 codes"):
        import_stage2(tmp_path / "model.chkpt", tmp_path / "vqgan.ckpt")


def test_a_model_that_the_reference_code_cannot_compute_stays_here(stage2, vqgan):
    ours = build(lambda: ProcedureEncoder(encoder_config()), generator())
    with pytest.raises(BadInput) as caught:
        export_stage1(ours, small_vqgan(), "data/pretrain")
    for name in ("start is comparison, not usual", "heads is 4", "reserved", "tokenizer.features is normalised"):
        assert name in caught.value.what
    paper = build(
        lambda: EncoderDecoder(replace(stage2.config, imagining=replace(stage2.config.imagining, mask_rows="right"))),
        generator(),
    )
    with pytest.raises(BadInput, match=r"does: imagining\.mask_rows is right, not shifted\n"):
        export_stage2(paper, vqgan, "data/caption")
