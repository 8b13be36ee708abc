"""Reading foreign VQGAN weights: whatever does not fit is refused by name, what fits computes what was published."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from procap.checkpoints.vqgan import import_vqgan
from procap.errors import BadInput
from procap.models.build import build
from procap.models.vqgan import VQGAN, VQGANConfig
from tests.small import VQGAN_CONFIG, generator, small_vqgan

OFFICIAL = Path(__file__).parents[2] / ".." / "shared" / "reference" / "official"


class Settings:
    """What Lightning files hold besides tensors."""


@pytest.fixture
def weights():
    return dict(small_vqgan().state_dict())


def lightning(path: Path, state: dict, **more: object) -> Path:
    torch.save({"state_dict": state, "epoch": 3, **more}, path)
    return path


def tensors(path: Path, state: dict) -> Path:
    save_file({key: value.contiguous() for key, value in state.items()}, path)
    return path


@pytest.mark.parametrize("write", [lightning, tensors])
def test_sizes_follow_from_the_shapes(weights, tmp_path, write):
    path = write(tmp_path / ("a.ckpt" if write is lightning else "a.safetensors"), weights)
    vqgan = import_vqgan(path, 32)
    assert vqgan.config == VQGAN_CONFIG
    assert all(torch.equal(value, weights[key]) for key, value in vqgan.state_dict().items())


def test_several_blocks_and_uneven_levels(tmp_path):
    config = VQGANConfig(32, (1, 3, 2), 2, 5, 4, 64)
    made = build(lambda: VQGAN(config), generator())
    path = tensors(tmp_path / "a.safetensors", made.state_dict())
    assert import_vqgan(path, 64).config == config
    assert import_vqgan(path, 64, "bfloat16").config == replace(config, precision="bfloat16")


def test_loss_and_needless_attention_are_left_out(weights, tmp_path):
    weights["loss.discriminator.main.0.weight"] = torch.zeros(3)
    for key in ("encoder.down.3.attn.0.q.weight", "decoder.up.3.attn.1.norm.bias"):
        weights[key] = torch.zeros(3)
    assert import_vqgan(lightning(tmp_path / "a.ckpt", weights), 32).config == VQGAN_CONFIG


def test_attention_where_it_belongs_is_asked_for(tmp_path):
    config = VQGANConfig(32, (1, 1, 1, 1, 1), 1, 4, 4, 256)
    state = build(lambda: VQGAN(config), generator()).state_dict()
    assert any(".attn." in key for key in state)
    assert import_vqgan(tensors(tmp_path / "a.safetensors", state), 256).config == config
    bare = {key: value for key, value in state.items() if not key.startswith("encoder.down.4.attn.")}
    with pytest.raises(BadInput, match=r"missing: encoder\.down\.4\.attn\.0\.norm\.weight"):
        import_vqgan(tensors(tmp_path / "b.safetensors", bare), 256)


def test_every_key_that_does_not_fit_is_named(weights, tmp_path):
    del weights["encoder.mid.block_1.conv1.bias"]
    weights["teacher.weight"] = torch.zeros(2)
    weights["post_quant_conv.bias"] = torch.zeros(9)
    with pytest.raises(BadInput) as caught:
        import_vqgan(lightning(tmp_path / "a.ckpt", weights), 32)
    assert "missing: encoder.mid.block_1.conv1.bias" in caught.value.what
    assert "unknown: teacher.weight" in caught.value.what
    assert "post_quant_conv.bias (9,) for (8,)" in caught.value.what
    assert caught.value.where == str(tmp_path / "a.ckpt")


@pytest.mark.parametrize("key", ["quantize.embedding.weight", "encoder.conv_in.weight"])
def test_another_network_is_no_vqgan(weights, tmp_path, key):
    del weights[key]
    with pytest.raises(BadInput, match=f"not a VQGAN of taming-transformers: {key} is missing"):
        import_vqgan(lightning(tmp_path / "a.ckpt", weights), 32)


def test_objects_beside_the_weights_are_passed_over(weights, tmp_path):
    path = lightning(tmp_path / "old.ckpt", weights, hyper_parameters=Settings())
    assert import_vqgan(path, 32).config == VQGAN_CONFIG


def test_a_folder_with_an_imported_vqgan_is_taken(weights, tmp_path):
    tensors(tmp_path / "vqgan.safetensors", weights)
    assert import_vqgan(tmp_path, 32).config == VQGAN_CONFIG


@pytest.mark.parametrize("name", ["absent.ckpt", "text.ckpt", "text.safetensors", "list.ckpt", "cut.ckpt"])
def test_files_that_are_no_checkpoints(weights, tmp_path, name):
    if name.startswith("text"):
        (tmp_path / name).write_text("<html>404</html>")
    if name == "list.ckpt":
        torch.save([1, 2], tmp_path / name)
    if name == "cut.ckpt":
        whole = lightning(tmp_path / name, weights).read_bytes()
        (tmp_path / name).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(BadInput) as caught:
        import_vqgan(tmp_path / name, 32)
    assert caught.value.where == str(tmp_path / name)


def test_a_picture_that_the_network_cannot_halve_so_often(weights, tmp_path):
    with pytest.raises(BadInput, match="halves the picture 3 times") as caught:
        import_vqgan(lightning(tmp_path / "a.ckpt", weights), 36)
    assert "a multiple of 8, found 36" in caught.value.expected


@pytest.fixture(scope="module")
def official(tmp_path_factory):
    """(network, expected outputs, picture) of the published sizes, with weights by formula."""
    if not OFFICIAL.exists():
        pytest.skip("no ../shared here")
    sys.path.insert(0, str(OFFICIAL))
    try:
        from formula_weights import formula_image, formula_weights
    finally:
        sys.path.remove(str(OFFICIAL))
    keys = json.loads((OFFICIAL / "keys_vqgan_f16_1024_224.json").read_text(encoding="utf-8"))
    made = formula_weights({key: facts["shape"] for key, facts in keys.items()})
    state = {key: torch.from_numpy(value) for key, value in made.items()}
    assert state.keys() == keys.keys()
    state |= {"encoder.down.4.attn.0.q.bias": torch.zeros(512), "loss.logvar": torch.zeros(1)}
    path = tmp_path_factory.mktemp("vqgan") / "published.ckpt"
    torch.save({"state_dict": state, "global_step": 1}, path)
    vqgan = import_vqgan(path, 224).requires_grad_(False)
    path.unlink()
    picture = torch.from_numpy(formula_image("vqgan/1", 224, 224))[None]
    return vqgan, np.load(OFFICIAL / "vectors_vqgan.npz", allow_pickle=False), picture


def relative(got: torch.Tensor, expected: np.ndarray) -> float:
    truth = torch.from_numpy(expected)
    return float((got - truth).norm() / truth.norm())


@pytest.mark.shared
def test_the_published_network_sees_what_it_saw(official):
    vqgan, expected, picture = official
    assert vqgan.config == VQGANConfig(128, (1, 1, 2, 2, 4), 2, 1024, 256, 224)
    encoded = vqgan.encode(picture)
    assert relative(encoded, expected["encoder_normalised"][1:]) < 2e-5
    assert relative(vqgan.quant_conv(encoded)[:, ::4], expected["quant_conv"][1:]) < 2e-5
    assert np.array_equal(vqgan.tokens(encoded).numpy(), expected["tokens"][1:])


@pytest.mark.shared
def test_the_published_network_draws_what_it_drew(official):
    vqgan, expected, _ = official
    drawn = vqgan.decode(torch.from_numpy(expected["indices"][1:].astype(np.int64)))
    assert relative(drawn[..., 2::5, 2::5], expected["picture"][1:]) < 1e-4
