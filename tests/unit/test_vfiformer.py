"""The network computes what the published code computes, and depends on nothing but its weights and pictures."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from procap.checkpoints import vfiformer
from procap.errors import BadInput
from procap.models.vfiformer import VFIformer, warp
from tests.formula import formula_pictures, formula_weights

REFERENCE = Path(__file__).parents[1] / "reference" / "vfiformer_64.npz"
OFFICIAL = Path(__file__).parents[2] / ".." / "shared" / "reference" / "official"
STRIDED = ("flow_refined", "warped0", "warped1", "output", "frame")
"""Of these, ``REFERENCE`` has every second pixel, from the second."""


def pair(side: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The pictures that the expected numbers were made from."""
    before, other = formula_pictures("vfiformer/img0", "vfiformer/img1", side=side).split(1)
    return before, 0.6 * before.roll((3, -2), (2, 3)) + 0.4 * other


@pytest.fixture(scope="module")
def net(tmp_path_factory):
    """Read from a file that looks like the published one."""
    state = VFIformer().state_dict()
    weights = formula_weights({key: tuple(value.shape) for key, value in state.items()})
    file = {f"module.{key}": value for key, value in weights.items()}
    block = "module.transformer.layers0.1.residual_group.blocks.1"
    file |= {f"{block}.attn_mask_y": torch.zeros(576, 64, 64), f"{block}.attn.relative_position_index": torch.zeros(64)}
    path = tmp_path_factory.mktemp("vfiformer") / "published.pth"
    torch.save(file, path)
    loaded = vfiformer.load_vfiformer(path, torch.device("cpu"))
    path.unlink()
    return loaded


def computed(net: VFIformer, before: torch.Tensor, after: torch.Tensor) -> dict[str, torch.Tensor]:
    """The frame and what the parts gave on the way to it, each with a leading axis of pairs."""
    seen = {}
    hooks = [
        part.register_forward_hook(lambda _, __, output, name=name: seen.__setitem__(name, output))
        for name, part in net.named_children()
    ]
    frame = vfiformer.midpoint(net)(before, after)
    for hook in hooks:
        hook.remove()
    flows, context = seen["refinenet"]
    warped = warp(torch.cat([before, after]), flows).chunk(2)
    sides = {f"context{side}_{level}": maps.chunk(2)[side] for level, maps in enumerate(context) for side in (0, 1)}
    return {
        **dict(zip(("flow_coarse", "flow_middle", "flow"), seen["flownet"], strict=True)),
        "flow_refined": torch.cat(flows.chunk(2), dim=1),
        "warped0": warped[0],
        "warped1": warped[1],
        "fused": seen["fuse_block"][:, ::8, 1::4, 1::4],
        "output": seen["transformer"],
        "frame": frame,
        **{name: maps[:, ::8, :: maps.shape[2] // 8, :: maps.shape[3] // 8] for name, maps in sides.items()},
    }


def relative(got: torch.Tensor, expected: np.ndarray) -> float:
    return float(np.linalg.norm(got.numpy() - expected) / np.linalg.norm(expected))


def test_every_part_computes_what_was_published_whatever_else_is_in_the_batch(net):
    before, after = pair(64)
    drawn = torch.rand(2, 1, 3, 50, 58, generator=torch.Generator().manual_seed(0))
    padded = (torch.nn.functional.pad(each, (0, 6, 0, 14), mode="replicate") for each in drawn)
    ends = [torch.cat(both) for both in zip((before, after), padded, strict=True)]
    state = torch.random.get_rng_state()
    made = computed(net, *ends)
    assert torch.equal(torch.random.get_rng_state(), state)
    expected = np.load(REFERENCE, allow_pickle=False)
    for name in expected.files:
        got = made[name][:1, :, 1::2, 1::2] if name in STRIDED else made[name][:1]
        assert relative(got, expected[name]) < 2e-5, name
    alone = vfiformer.midpoint(net)(*drawn)
    torch.testing.assert_close(alone, made["frame"][1:, :, :50, :58], atol=1e-5, rtol=0)


def test_it_is_frozen(net):
    assert not net.training
    assert not any(weight.requires_grad for weight in net.parameters())


def test_files_that_do_not_fit_are_refused_by_name(net, tmp_path):
    device, path = torch.device("cpu"), tmp_path / "a.pth"
    with pytest.raises(BadInput, match="no such"):
        vfiformer.load_vfiformer(path, device)
    state = net.state_dict()
    state["stranger"] = state.pop("fuse_block.0.bias")
    torch.save(state, path)
    with pytest.raises(BadInput, match=re.compile("fuse_block.0.bias.*stranger", re.DOTALL)):
        vfiformer.load_vfiformer(path, device)


@pytest.mark.shared
@pytest.mark.skipif(not OFFICIAL.exists(), reason="../shared is not there")
def test_the_keys_are_those_of_the_published_file(net):
    keys = json.loads((OFFICIAL / "keys_vfiformer.json").read_text(encoding="utf-8"))
    published = {key: tuple(facts["shape"]) for key, facts in keys.items() if facts["kind"] != "buffer"}
    assert {key: tuple(value.shape) for key, value in net.state_dict().items()} == published
    assert all(vfiformer.COMPUTED.match(key) for key in keys.keys() - published.keys())


@pytest.mark.shared
@pytest.mark.slow
@pytest.mark.skipif(not OFFICIAL.exists(), reason="../shared is not there")
@pytest.mark.parametrize("side", [64, 128])
def test_all_published_numbers(net, side):
    made = computed(net, *pair(side))
    made |= {"residual": 2 * made["output"][:, :3].sigmoid() - 1, "mask": made["output"][:, 3:].sigmoid()}
    published = np.load(OFFICIAL / "vectors_vfiformer.npz", allow_pickle=False)
    names = [name for name in published.files if name.startswith(f"{side}_") and name != "64_img1"]
    assert len(names) == 19
    for name in names:
        got, expected = made[name.partition("_")[2]], published[name]
        if side == 128 and got.shape != expected.shape:
            got = got[..., ::2, ::2] if got.shape[-1] == 64 else got[..., 1::4, 1::4]
        assert relative(got, expected) < 2e-5, name
