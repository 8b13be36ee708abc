"""The stage-1 objective, explicit procedure modelling: L = msm + align + csy (paper, section 3.1)."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from procap.models.procedure_encoder import Encoded, ProcedureEncoder
from procap.procedure.masking import STRATEGIES, mask_keyframes
from procap.procedure.warping import WARPS, shuffle_frames, swap_frames
from procap.shapes import Bool, Features, Float, Int, Scalar, Tensor, Tokens, Words


@dataclass(frozen=True)
class ProcedureBatch:
    """Keyframes of pairs with a caption each."""

    features: Features
    """Frozen features of before, the kept frames and after."""
    tokens: Tokens
    """Codes of the same frames."""
    words: Words
    warped: Float[Tensor, "b 2 n c"]
    """Features of one frame of each pair after a colour shift (0) and after an affine warp (1)."""
    warped_frame: Int[Tensor, "b 2"]
    """Which of the t frames that is."""


@dataclass(frozen=True)
class Masking:
    """How stage 1 hides places."""

    probabilities: tuple[float, float, float, float]
    """Of STRATEGIES, in order."""
    patch_masked: float


@dataclass(frozen=True)
class Weights:
    """Of the three losses; the paper has 1, 1, 1, the reference code 7, 0.5, 0.5."""

    msm: float
    align: float
    csy: float


def caption_partners(words: Words, generator: torch.Generator) -> tuple[Int[Tensor, " b"], Bool[Tensor, " b"]]:
    """(partner, found): for each pair another one of the batch whose caption differs in at least one word.

    A pair for which there is none has found False and stays out of the alignment loss.
    """
    differs = (words[:, None] != words[None]).any(-1)
    found = differs.any(1)
    chances = torch.where(found[:, None], differs.float(), torch.ones_like(differs, dtype=torch.float32))
    return torch.multinomial(chances, 1, generator=generator)[:, 0], found


def inconsistent(batch: ProcedureBatch, generator: torch.Generator) -> tuple[Features, Bool[Tensor, " b"]]:
    """(features, found): each pair warped by one of WARPS, uniform.

    A warp that left the sequence as it was (two equal frames changed places) has found False and stays out of
    the consistency loss.
    """
    b = batch.features.shape[0]
    rows = torch.arange(b)
    kind = torch.randint(len(WARPS), (b,), generator=generator)
    choices = [swap_frames(batch.features, generator), shuffle_frames(batch.features, generator)]
    for number in range(2):
        pictured = batch.features.clone()
        pictured[rows, batch.warped_frame[:, number]] = batch.warped[:, number]
        choices.append(pictured)
    warped = torch.stack(choices)[kind, rows]
    return warped, (warped != batch.features).flatten(1).any(1)


def _mean(losses: Float[Tensor, " b"], counted: Bool[Tensor, " b"]) -> Scalar:
    return (losses * counted).sum() / counted.sum().clamp(min=1)


def _discrimination(
    positive: Float[Tensor, " b"], negative: Float[Tensor, " b"], counted: Bool[Tensor, " b"]
) -> tuple[Scalar, Scalar]:
    """(binary cross-entropy of a true and a false example per pair, share of both told apart)."""
    loss = F.softplus(-positive) + F.softplus(negative)
    right = ((positive > 0).float() + (negative <= 0).float()) / 2
    return _mean(loss, counted), _mean(right, counted)


def objective(
    encoder: ProcedureEncoder,
    batch: ProcedureBatch,
    masking: Masking,
    weights: Weights,
    *,
    generator: torch.Generator,
) -> tuple[dict[str, Scalar], dict[str, float]]:
    """(weighted terms to sum, readings): one pass over the batch, its swapped captions and its warped frames."""
    b, t, _, _ = batch.features.shape
    kept, strategy = mask_keyframes(
        b, t, encoder.config.grid, masking.probabilities, masking.patch_masked, generator
    )
    partner, differs = caption_partners(batch.words, generator)
    warped, inconsistent_ = inconsistent(batch, generator)
    seen = strategy != STRATEGIES.index("entire")
    frames = encoder.embed_frames(batch.features, kept)
    caption = encoder.embed_caption(batch.words)
    encoded: Encoded = encoder(
        torch.cat([caption, caption[partner], caption]),
        torch.cat([frames, frames, encoder.embed_frames(warped, kept)]),
    )
    true, swapped, _ = encoder.align_head(encoded.align).float().squeeze(-1).chunk(3)
    consistent, _, broken = encoder.csy_head(encoded.csy).float().squeeze(-1).chunk(3)
    logits = encoder.token_head(encoded.frames[:b][~kept]).float()
    hidden = max(1, len(logits))
    msm = F.cross_entropy(logits, batch.tokens[~kept], reduction="sum") / hidden
    align, align_accuracy = _discrimination(true, swapped, differs & seen)
    csy, csy_accuracy = _discrimination(consistent, broken, inconsistent_ & seen)
    terms = {"msm": weights.msm * msm, "align": weights.align * align, "csy": weights.csy * csy}
    with torch.no_grad():
        right = (logits.argmax(-1) == batch.tokens[~kept]).sum() / hidden
    readings = {
        "msm_loss": msm, "align_loss": align, "csy_loss": csy,
        "msm_accuracy": right, "align_accuracy": align_accuracy, "csy_accuracy": csy_accuracy,
    }  # fmt: skip
    return terms, {name: value.item() for name, value in readings.items()}
