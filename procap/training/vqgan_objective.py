"""What the VQGAN is trained with: reconstruction, codebook, patch discriminator; and a codebook that stays alive."""


import torch
import torch.nn.functional as F
from einops import rearrange
from torch import nn

from procap.models.build import build
from procap.models.vqgan import VQGAN
from procap.shapes import Pictures, Tensor


class _Reverse(torch.autograd.Function):
    """Identity whose gradient changes sign: one optimiser trains both sides of the game."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.weight = weight
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return -ctx.weight * gradient, None


class Usage(nn.Module):
    """How often each code was used of late."""

    def __init__(self, codes: int) -> None:
        super().__init__()
        self.register_buffer("counts", torch.ones(codes))


class Adversary:
    """Reconstruction and codebook loss, and from update ``start`` on a patch discriminator (hinge loss).

    The perceptual (LPIPS) term of the published VQGAN needs VGG weights that have to be downloaded; it is left
    out, and first differences of the picture (edges) are compared instead (our formulation).
    """

    def __init__(self, weight: float, start: int, codes: int, generator: torch.Generator) -> None:
        from taming.modules.discriminator.model import NLayerDiscriminator, weights_init

        self.weight, self.start = weight, start
        self.network = build(
            lambda: NLayerDiscriminator(input_nc=3, ndf=32, n_layers=2).apply(weights_init), generator
        )
        self.usage = Usage(codes)

    def to(self, device: torch.device) -> None:
        self.network.to(device)
        self.usage.to(device)

    def terms(
        self, vqgan: VQGAN, pictures: Pictures, step: int, *, plain: bool
    ) -> tuple[dict[str, Tensor], dict[str, float]]:
        """(loss terms, readings); ``plain`` leaves the codebook out while the encoder finds its scale."""
        truth = 2 * pictures - 1
        if plain:
            encoded = vqgan.encode(pictures)
            drawn, codebook = vqgan.decoder(vqgan.post_quant_conv(vqgan.quant_conv(encoded))).float(), 0 * truth.sum()
        else:
            drawn, codebook, tokens = vqgan(pictures)
            seen = torch.bincount(tokens.flatten(), minlength=vqgan.config.codes)
            self.usage.counts.mul_(0.98).add_(seen)
        reconstruction = F.l1_loss(drawn, truth) + F.mse_loss(drawn, truth)
        edges = torch.stack([F.l1_loss(drawn.diff(dim=axis), truth.diff(dim=axis)) for axis in (2, 3)]).sum()
        terms = {"reconstruction": reconstruction, "edges": edges, "codebook": codebook}
        if self.weight and step >= self.start:
            judged = self.network(torch.cat([truth, _Reverse.apply(drawn, self.weight)]))
            real, fake = judged.float().chunk(2)
            terms["adversarial"] = (F.relu(1 - real).mean() + F.relu(1 + fake).mean()) / 2
        return terms, {name: value.item() for name, value in terms.items()}


@torch.no_grad()
def _vectors(vqgan: VQGAN, pictures: Pictures, count: int, generator: torch.Generator) -> Tensor:
    """``count`` encoder outputs of these pictures, drawn at random."""
    places = rearrange(vqgan.quant_conv(vqgan.encode(pictures)), "b c h w -> (b h w) c").float()
    chosen = torch.randint(len(places), (count,), generator=generator).to(places.device)
    return places[chosen] + 1e-3 * torch.randn(count, places.shape[1], generator=generator).to(places.device)


@torch.no_grad()
def start_codes(vqgan: VQGAN, pictures: Pictures, generator: torch.Generator) -> None:
    """Let the codebook begin as outputs of the encoder, so that every code has something to stand for."""
    vqgan.quantize.embedding.weight.copy_(_vectors(vqgan, pictures, vqgan.config.codes, generator))


@torch.no_grad()
def revive_codes(vqgan: VQGAN, usage: Usage, pictures: Pictures, generator: torch.Generator) -> None:
    """Move codes that are hardly used any more to outputs of the encoder."""
    dead = usage.counts < 1
    fresh = _vectors(vqgan, pictures, int(dead.sum()), generator)
    vqgan.quantize.embedding.weight[dead] = fresh
    usage.counts[dead] = usage.counts.mean()
