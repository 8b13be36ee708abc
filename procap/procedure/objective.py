"""The stage-1 objective, explicit procedure modelling: L = msm + align + csy (paper, section 3.1)."""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F

from procap.models.procedure_encoder import ProcedureEncoder
from procap.procedure.masking import STRATEGIES, Masking, mask_keyframes
from procap.procedure.warping import WARPS, draw_orders, draw_swaps, shuffle_frames, swap_frames
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
class Weights:
    """Of the three losses; the paper has 1, 1, 1, the reference code 7, 0.5, 0.5."""

    msm: float
    align: float
    csy: float


@dataclass(frozen=True)
class Counting:
    """What the losses count, and how. Where a choice has a default, that is ours."""

    negatives: Literal["checked", "unchecked"] = "checked"
    """``checked``: a negative that is none (the same caption, an unchanged sequence) is avoided or stays out of the
    mean; ``unchecked``: the caption comes from half a batch further, and all count (reference)."""
    unseen: Literal["left_out", "denominator", "counted"] = "left_out"
    """Pairs of which everything is hidden, in align and csy: in neither (ours); ``denominator``: csy adds up all pairs
    but divides by the number of the seen ones (reference); ``counted`` like all others (paper)."""
    msm_mean: Literal["places", "pairs"] = "places"
    """msm is the mean over all hidden places (reference), or first over each pair's own."""


OURS = Counting()
ALL = slice(None)
"""Rows of a batch that nobody shares."""


@dataclass(frozen=True)
class Draws:
    """What chance decides of one update."""

    kept: Bool[Tensor, "b t n"]
    seen: Bool[Tensor, " b"]
    """Not everything is hidden."""
    partner: Int[Tensor, " b"]
    """Whose caption the alignment negative has."""
    misaligned: Bool[Tensor, " b"]
    """That caption makes a negative."""
    warped: Features
    inconsistent: Bool[Tensor, " b"]
    """``warped`` makes a negative."""


def draw(batch: ProcedureBatch, grid: int, masking: Masking, counting: Counting, generator: torch.Generator) -> Draws:
    """Masks, partners and warps of a batch."""
    b, t = batch.features.shape[:2]
    kept, strategy = mask_keyframes(b, t, grid, masking, generator)
    seen = (strategy != STRATEGIES.index("entire")) | kept.flatten(1).any(1)
    if counting.negatives == "checked":
        partner, misaligned = caption_partners(batch.words, generator)
    else:
        partner, misaligned = torch.arange(b).roll(-(b // 2)), torch.ones(b, dtype=torch.bool)
    warped, inconsistent_ = inconsistent(batch, generator)
    if counting.negatives == "unchecked":
        inconsistent_ = torch.ones_like(inconsistent_)
    device = batch.features.device
    drawn = (kept, seen, partner, misaligned, warped, inconsistent_)
    return Draws(*(values.to(device) for values in drawn))


def caption_partners(words: Words, generator: torch.Generator) -> tuple[Int[Tensor, " b"], Bool[Tensor, " b"]]:
    """(partner, found): for each pair another one of the batch whose caption differs in at least one word.

    A pair for which there is none has found False and stays out of the alignment loss.
    """
    words = words.to(generator.device)
    differs = (words[:, None] != words[None]).any(-1)
    found = differs.any(1)
    chances = torch.where(found[:, None], differs.float(), torch.ones_like(differs, dtype=torch.float32))
    return torch.multinomial(chances, 1, generator=generator)[:, 0], found


def inconsistent(batch: ProcedureBatch, generator: torch.Generator) -> tuple[Features, Bool[Tensor, " b"]]:
    """(features, found): each pair warped by one of WARPS, uniform.

    A warp that left the sequence as it was (two equal frames changed places) has found False and stays out of
    the consistency loss.
    """
    b, t = batch.features.shape[:2]
    rows = torch.arange(b)
    kind = torch.randint(len(WARPS), (b,), generator=generator)
    choices = [
        swap_frames(batch.features, draw_swaps(b, t, generator)),
        shuffle_frames(batch.features, draw_orders(b, t, generator)),
    ]
    for number in range(2):
        pictured = batch.features.clone()
        pictured[rows, batch.warped_frame[:, number]] = batch.warped[:, number]
        choices.append(pictured)
    warped = torch.stack(choices)[kind, rows]
    return warped, (warped != batch.features).flatten(1).any(1)


def _discrimination(
    positive: Float[Tensor, " b"],
    negative: Float[Tensor, " b"],
    counted: Bool[Tensor, " all"],
    number: Tensor,
    share: slice,
) -> tuple[Scalar, Scalar]:
    """(binary cross-entropy of a true and a false example per pair over ``number``, share of both told apart).

    ``counted`` and ``number`` are of the whole batch.
    """
    loss = F.softplus(-positive) + F.softplus(negative)
    right = ((positive > 0).float() + (negative <= 0).float()) / 2
    here = counted[share]
    return (loss * here).sum() / number.clamp(min=1), (right * here).sum() / counted.sum().clamp(min=1)


def _rebuilding(
    logits: Float[Tensor, "hidden v"],
    tokens: Int[Tensor, " hidden"],
    kept: Bool[Tensor, "all t n"],
    mean: str,
    share: slice,
) -> Scalar:
    """Cross-entropy of the hidden places' tokens; ``kept`` is of the whole batch."""
    if mean == "places":
        return F.cross_entropy(logits, tokens, reduction="sum") / max(1, int((~kept).sum()))
    hidden = (~kept).flatten(1).sum(1)
    weights = (~kept / hidden.clamp(min=1)[:, None, None])[share][~kept[share]]
    return (F.cross_entropy(logits, tokens, reduction="none") * weights).sum() / (hidden > 0).sum().clamp(min=1)


def losses(
    encoder: ProcedureEncoder, batch: ProcedureBatch, draws: Draws, counting: Counting = OURS, share: slice = ALL
) -> tuple[dict[str, Scalar], dict[str, Scalar]]:
    """(msm, align and csy, unweighted; accuracies): one pass over the batch, swapped captions and warped frames.

    With a ``share``, rows of the batch, these are its parts: over all shares they add up to those of the batch.
    """
    kept, captioned = draws.kept[share], encoder.config.captions
    frames, caption = encoder.embed_frames(batch.features[share], kept), encoder.embed_caption(batch.words[share])
    passes = [(caption, frames), (caption, encoder.embed_frames(draws.warped[share], kept))]
    if captioned:
        whole = len(kept) == len(draws.kept)
        other = caption[draws.partner] if whole else encoder.embed_caption(batch.words[draws.partner[share]])
        passes.insert(1, (other, frames))
    encoded = encoder(*(torch.cat(parts) for parts in zip(*passes, strict=True)), whole=len(kept))
    true, swapped, *_ = encoder.align_head(encoded.align).float().squeeze(-1).chunk(len(passes))
    consistent, *_, broken = encoder.csy_head(encoded.csy).float().squeeze(-1).chunk(len(passes))
    logits, tokens = encoder.token_head(encoded.frames[~kept]).float(), batch.tokens[share][~kept]
    msm = _rebuilding(logits, tokens, draws.kept, counting.msm_mean, share)
    seen = torch.ones_like(draws.seen) if counting.unseen == "counted" else draws.seen
    aligned, warped = draws.misaligned & seen & captioned, draws.inconsistent & seen
    align, align_accuracy = _discrimination(true, swapped, aligned, aligned.sum(), share)
    summed = draws.inconsistent if counting.unseen == "denominator" else warped
    csy, csy_accuracy = _discrimination(consistent, broken, summed, warped.sum(), share)
    msm_accuracy = (logits.argmax(-1) == tokens).sum() / max(1, int((~draws.kept).sum()))
    found = {"msm": msm, "align": align, "csy": csy}
    return found, {"msm_accuracy": msm_accuracy, "align_accuracy": align_accuracy, "csy_accuracy": csy_accuracy}


def objective(
    encoder: ProcedureEncoder,
    batch: ProcedureBatch,
    masking: Masking,
    weights: Weights,
    counting: Counting = OURS,
    *,
    generator: torch.Generator,
) -> tuple[dict[str, Scalar], dict[str, float]]:
    """(weighted terms to sum, readings) of a batch as chance has it."""
    draws = draw(batch, encoder.config.grid, masking, counting, generator)
    return weigh(*losses(encoder, batch, draws, counting), weights)


def weigh(
    found: dict[str, Scalar], accuracies: dict[str, Scalar], weights: Weights
) -> tuple[dict[str, Scalar], dict[str, float]]:
    """(weighted terms to sum, readings) of what ``losses`` gives."""
    terms = {name: getattr(weights, name) * value for name, value in found.items()}
    readings = {f"{name}_loss": value for name, value in found.items()} | accuracies
    return terms, {name: value.item() for name, value in readings.items()}
