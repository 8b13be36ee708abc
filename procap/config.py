"""``params.yaml`` as frozen models: one section per step, nothing unknown, nothing implied twice.

Sizes that follow from other values (tokens per frame, words of the vocabulary, length of a sequence) are
properties here or facts of the data; they never stand in the file.
"""

import difflib
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from procap.errors import BadInput

Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1)]
Rate = Annotated[float, Field(gt=0)]
Weight = Annotated[float, Field(ge=0)]
Elsewhere = Annotated[str, "elsewhere"]
"""A file or folder that no step makes; what changes in it makes the step run again (``flows/watching.py``)."""

CorpusName = Literal[
    "rendered",
    "clevr_change",
    "clevr_dc",
    "spot_the_diff",
    "image_editing_request",
    "birds_to_words",
    "levir_cc",
    "levir_mci",
    "table",
]
CaptionerName = Literal["static", "procap", "ccrc", "mct_ccdiff", "decider"]
Optimiser = Annotated[
    Literal["adamw", "adam", "bert_adam"],
    Field(description="adamw: ours; adam, bert_adam: stage 1 and stage 2 of the reference code"),
]
Schedule = Annotated[
    Literal["cosine", "log_warmup", "warmup_linear"],
    Field(description="cosine: ours; log_warmup, warmup_linear: stage 1 and stage 2 of the reference code"),
]


class Section(BaseModel):
    """A section of ``params.yaml``: frozen, and it refuses keys that it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=False, allow_inf_nan=False, protected_namespaces=())


class Dataset(Section):
    """Which corpus."""

    name: CorpusName = Field(description="rendered: scenes made here; any other: data/raw/<name>, see `procap import`")
    on_error: Literal["stop", "skip"] = Field(description="stop at a picture that cannot be used, or skip its pair")


class Shift(Section):
    """Rendered scenes unlike those of the other splits, as a split test_shift that ``evaluate`` scores apart.

    Where there are any, cubes and cylinders have half of the colours each in the other splits, and here swap them.
    """

    count: Annotated[int, Field(ge=0, le=99_999)] = Field(description="scenes; 0: no such split")
    objects: tuple[Count, Count] = Field(description="fewest and most objects; more than other scenes ever have")
    aside: Annotated[float, Field(ge=0, le=180)] = Field(
        description="degrees that the cameras stand aside, to the left or the right; further than those of other scenes"
    )


class Scenes(Section):
    """The rendered scenes (``dataset.name: rendered``)."""

    count: Annotated[int, Field(ge=10)] = Field(description="scenes; each gives one changed and one distractor pair")
    objects: tuple[Count, Count] = Field(description="fewest and most objects in a scene")
    camera_jitter: Annotated[float, Field(ge=0, le=1)] = Field(
        description="how far the camera moves between two pictures, in scene units; CLEVR-Change has about 0.5"
    )
    light_jitter: Annotated[float, Field(ge=0, le=1)] = Field(
        description="how much the lamps change between two pictures; CLEVR-Change has about 0.3"
    )
    turn: Annotated[float, Field(ge=0, le=180)] = Field(
        description="furthest the camera goes around the scene between two pictures, in degrees"
    )
    hidden: Annotated[float, Field(ge=0, lt=1)] = Field(description="largest share of an object that others may hide")
    size_jitter: Annotated[float, Field(ge=0, le=0.25)] = Field(
        description="an object's radius differs by up to this share from that of its named size"
    )
    changes: tuple[Count, Count] = Field(description="fewest and most changes at once, each of another object")
    samples: Annotated[int, Field(ge=1, le=8)] = Field(description="rays per pixel side; 2 means 2x2")
    splits: tuple[Share, Share, Share] = Field(description="shares of train, val and test scenes")
    truth: bool = Field(description="also render the true procedure (for interpolate.method: truth)")
    shift: Shift

    @model_validator(mode="after")
    def _consistent(self) -> "Scenes":
        for name, (fewest, most) in (
            ("objects", self.objects),
            ("changes", self.changes),
            ("shift.objects", self.shift.objects),
        ):
            if fewest > most:
                raise ValueError(f"{name}: the fewest ({fewest}) must not exceed the most ({most})")
        if self.changes[1] > self.objects[0]:
            raise ValueError(f"changes: {self.changes[1]} at once need as many objects, not {self.objects[0]}")
        if self.shift.count:
            least = self.objects[1] + 2 * self.changes[1] + 1
            if self.shift.objects[0] < least:
                raise ValueError(
                    f"shift.objects: from {least} on they are never seen elsewhere, not {self.shift.objects[0]}"
                )
            if self.shift.aside < self.turn + 10:
                raise ValueError(f"shift.aside: must be turn + 10 = {self.turn + 10:g} or more to be a view never seen")
        if abs(sum(self.splits) - 1) > 1e-6:
            raise ValueError(f"splits: {self.splits} must sum to 1")
        return self


class Prepare(Section):
    image_size: Annotated[int, Field(ge=32, le=512, multiple_of=16)] = Field(description="pixels; pictures are square")
    words: Annotated[int, Field(ge=6, le=128)] = Field(description="longest caption, its two marks included")
    min_count: Count = Field(description="a word seen fewer times in the training captions is [UNK]")
    limit: Count | None = Field(description="use only so many pairs of a corpus on disk; null: all")
    vocabulary: Elsewhere | None = Field(
        description="a released {word: number} file; null: count the training captions"
    )
    scenes: Scenes


class Validate(Section):
    """Thresholds of the rules in ``procap/evaluation/rules.py``."""

    rarest_change: Share = Field(description="warn when a change type has a smaller share of the changed pairs")
    duplicate_bits: Annotated[int, Field(ge=0, le=15)] = Field(
        description="pictures of two splits may be doubles where at most so many of their hashes' 64 bits differ"
    )
    duplicate_difference: Annotated[float, Field(ge=0, le=255)] = Field(
        description="and are, where their thumbnails of 16 x 16 differ on average by at most this, of 255"
    )
    drift: Annotated[float, Field(gt=0)] = Field(
        description="warn when pictures of val or test are so many standard deviations from those of train"
    )
    largest_mask: Share = Field(description="warn when a mask marks a larger share of the picture")


class Interpolate(Section):
    method: Literal["rife", "vfiformer", "crossfade", "truth", "h5"] = Field(
        description="rife: pre-trained network; vfiformer: the paper's, from checkpoint; crossfade: mixing pixels; "
        "truth: the renderer's own procedure; h5: read from files, as ProCap releases them"
    )
    checkpoint: Elsewhere | None = Field(
        description="weights for method vfiformer, or for rife instead of the package's: a file, or a folder that "
        "`procap import-weights` wrote"
    )
    h5: Elsewhere | tuple[Elsewhere, ...] | None = Field(
        description="a folder with .h5 files, or such files, for method h5"
    )
    frames: Literal[1, 3, 7, 15] = Field(description="l, synthetic frames between before and after (2^depth - 1)")
    batch: Count
    measured: Annotated[int, Field(ge=0)] = Field(
        description="pairs compared with the true procedure, where the corpus knows it (rendered); 0: none"
    )

    @model_validator(mode="after")
    def _consistent(self) -> "Interpolate":
        for method, key in (("vfiformer", "checkpoint"), ("h5", "h5")):
            if self.method == method and not getattr(self, key):
                raise ValueError(f"{key}: method '{method}' needs one")
        return self


class TwoTowerSettings(Section):
    """The two-tower model that ``sample`` trains on the training split for visual-text similarity."""

    width: Count = Field(description="of the space in which pairs and captions meet")
    steps: Count
    batch: Annotated[int, Field(ge=2)]
    learning_rate: Rate


class Sample(Section):
    """Confidence sampling; what a similarity does not use is ignored."""

    kept: Annotated[int, Field(ge=0)] = Field(description="k, inner frames that stage 1 sees")
    similarity: Literal["visual", "visual_text", "mixed", "random"] = Field(
        description="what equation 2 compares frames by; mixed: 0.7 visual_text and 0.3 visual; random: nothing"
    )
    visual_checkpoint: Elsewhere | None = Field(
        description="folder of a DINO-type ViT, read by transformers; null: the packaged EfficientNet-Lite0"
    )
    visual_text_checkpoint: Elsewhere | None = Field(
        description="folder of a CLIP-type checkpoint, read by transformers; null: train a two-tower model here"
    )
    two_tower: TwoTowerSettings
    scores: Elsewhere | None = Field(
        description="released *_similarity_scores.json that gives the similarities; null: compute them"
    )
    temperature: Annotated[float, Field(gt=0)] = Field(
        description="draws go by w^(1/temperature), w of equation 2; 1: the reference implementation"
    )
    draw: Literal["multinomial", "top"] = Field(
        description="multinomial: draw without replacement; top: the k best, whatever the temperature"
    )
    draws: Count = Field(description="independent draws per pair; training picks one of them each time")
    batch: Count

    @model_validator(mode="after")
    def _consistent(self) -> "Sample":
        if self.similarity == "random" and self.draw == "top":
            raise ValueError("draw: 'top' of a random similarity is always the first frames; use multinomial")
        return self


class Tokenizer(Section):
    """The VQGAN; sizes are ignored when ``checkpoint`` names one to import."""

    checkpoint: Elsewhere | None = Field(description="taming-transformers checkpoint to import; null: train one here")
    channels: Annotated[int, Field(multiple_of=32, ge=32)] = Field(description="of the first level")
    multipliers: tuple[Count, ...] = Field(description="per level; each but the first halves the picture")
    blocks: Count = Field(description="residual blocks per level")
    codes: Annotated[int, Field(ge=2, le=16384)] = Field(description="entries of the codebook")
    code_width: Count = Field(description="width of a feature and of a code")
    steps: Count
    batch: Count
    learning_rate: Rate
    precision: Literal["float32", "bfloat16"] = Field(description="of its products, in training and when frozen")
    features: Literal["normalised", "raw"] = Field(
        description="what features show: the picture in [-1, 1], as tokens do (ours, paper), or in [0, 1] (reference)"
    )
    colours: Annotated[int, Field(ge=0, le=4)] = Field(
        description="beside what the VQGAN says of a patch, a feature has the mean colours of so many times so "
        "many parts of it; 0: none (paper, reference)"
    )
    adversarial: Annotated[float, Field(ge=0)] = Field(description="weight of the patch discriminator; 0: none")
    adversarial_start: Share = Field(description="share of the steps before the discriminator joins")

    @property
    def reduction(self) -> int:
        """Pixels of a picture's side per token."""
        return 2 ** (len(self.multipliers) - 1)


class Tokenize(Section):
    batch: Count


class EncoderChoices(Section):
    """In what the procedure encoder of the paper, of the reference code and ours differ: ``EncoderConfig``."""

    start: Literal["comparison", "usual"] = Field(
        description="first weights; comparison: the first block compares the pictures (ours); usual: random"
    )
    activation: Literal["gelu", "quick_gelu"] = Field(description="gelu (ours) or that of CLIP (paper, reference)")
    reserved: bool = Field(description="a token of no use before e_csy (reference)")
    special_positions: bool = Field(description="e_align, e_csy are sums of two learned vectors (reference)")
    csy_sees: Literal["all", "frames"] = Field(description="frames: e_csy does not see the caption (paper, reference)")
    pads: Literal["shared", "placed"] = Field(
        description="placed: [PAD] has a vector for each place (paper, reference)"
    )
    queries: Literal["shared", "each"] = Field(
        description="shared: one vector stands in for all that is hidden (reference); each: one per place (paper)"
    )
    captions: bool = Field(description="stage 1 sees the caption; false: an ablation, without the alignment loss")


class ImaginingChoices(Section):
    """What stage 2 shows the procedure encoder before the frames: ``Imagining``."""

    prompt: Literal["none", "full", "without_align"] = Field(
        description="an empty caption as in stage 1: not at all (ours), with e_align (paper), without (reference)"
    )
    prompt_rows: Literal["pads", "first"] = Field(
        description="vectors of the empty caption: [PAD]'s (paper) or the first words' (reference)"
    )
    mask_rows: Literal["right", "shifted"] = Field(
        description="rows that csy_sees blocks: e_csy's (paper) or those that have its number in stage 1 (reference)"
    )


class Training(Section):
    """What stage 1 and stage 2 do with their batches, and when they stop."""

    accumulate: Count = Field(
        description="parts that a batch is computed in, one after another, to save memory; numbers stay"
    )
    patience: Count | None = Field(
        description="looks at the validation split without a better one before it stops; null: to the end"
    )
    on_bad_loss: Literal["stop", "skip"] = Field(
        description="skip: a batch whose loss or gradient is not finite, or a spike, is left out"
    )
    spike: Annotated[float, Field(gt=1)] | None = Field(
        description="a loss so many times the mean of the last 20 is a spike; null: none is"
    )


class Pretrain(Training):
    """Stage 1, explicit procedure modelling."""

    width: Annotated[int, Field(multiple_of=12, ge=12)] = Field(
        description="d of the procedure encoder; its first block starts with three heads, hence multiples of 12"
    )
    layers: Count
    heads: Count
    encoder: EncoderChoices
    steps: Count
    batch: Annotated[int, Field(ge=2)]
    optimiser: Optimiser
    learning_rate: Rate
    weight_decay: Annotated[float, Field(ge=0)]
    schedule: Schedule
    warmup: Share = Field(description="share of the planned steps in which the learning rate rises")
    planned_steps: Count | None = Field(description="steps that the schedule is made for; null: steps")
    selection: Literal["val", "last"] = Field(
        description="val: the weights with the least validation loss; last: those of the last step (reference code)"
    )
    masking: tuple[Share, Share, Share, Share] = Field(
        description="probabilities of: random patch, entire, in-block, out-of-block"
    )
    patch_masked: Share = Field(description="share of the patches that the random-patch strategy masks")
    entire: Literal["sequence", "frames"] = Field(
        description="the strategy entire hides all frames (reference) or one to all of them (paper)"
    )
    weights: tuple[float, float, float] = Field(description="of the losses msm, align, csy")
    negatives: Literal["checked", "unchecked"] = Field(
        description="unchecked: a negative may say or show the same as the pair (reference)"
    )
    unseen: Literal["left_out", "denominator", "counted"] = Field(
        description="pairs of which all is hidden, in align and csy: left out (ours), from csy's denominator only "
        "(reference), counted (paper)"
    )
    msm_mean: Literal["places", "pairs"] = Field(description="over all hidden places (reference) or pair by pair first")
    validate_every: Count = Field(description="updates between two looks at the validation split")
    checkpoint: Elsewhere | None = Field(
        description="folder that `procap import-weights --kind stage1` wrote, to take instead of training; null: train"
    )

    @model_validator(mode="after")
    def _consistent(self) -> "Pretrain":
        if self.width % self.heads:
            raise ValueError(f"width: {self.width} is not a multiple of heads ({self.heads})")
        if self.patience is not None and self.selection == "last":
            raise ValueError("patience: it asks for the best look at the validation split, but selection is last")
        if abs(sum(self.masking) - 1) > 1e-6:
            raise ValueError(f"masking: {self.masking} must sum to 1")
        _check_schedule(self.steps, self.planned_steps)
        return self


class Caption(Training):
    """Stage 2, implicit procedure captioning; every captioner trains with these."""

    decoder_layers: Count
    decoder_width: Annotated[int, Field(ge=8, multiple_of=8)]
    decoder_heads: Count
    decoder: Literal["compact", "reference"] = Field(
        description="reference: norms after the sums, no biases in attention, fixed positions, as in its code"
    )
    imagining: ImaginingChoices
    decoding: Literal["search", "reference"] = Field(
        description="reference: greedy, of all marks only [UNK] is barred; evaluate.beams must be 1"
    )
    dropout: Annotated[float, Field(ge=0, lt=1)]
    label_smoothing: Annotated[float, Field(ge=0, lt=0.9)] = Field(
        description="share of a word's target that the other words get; paper 0, reference code 0.1"
    )
    reduction: Literal["mean", "sum"] = Field(description="of the words' losses in a batch; reference code: sum")
    pretrained: bool = Field(description="start from stage 1, or from scratch; static never has a stage 1")
    between: Literal["queries", "frames", "nothing"] = Field(
        description="what procap sees between the two pictures: queries (implicit procedure), the interpolated frames "
        "(explicit; sample.kept of them, evenly spread), or nothing"
    )
    steps: Count
    batch: Count
    optimiser: Optimiser
    learning_rate: Rate
    encoder_learning_rate: Rate = Field(description="of the part that stage 1 trained")
    weight_decay: Annotated[float, Field(ge=0)]
    schedule: Schedule
    warmup: Share = Field(description="share of the planned steps in which the learning rate rises")
    planned_steps: Count | None = Field(description="steps that the schedule is made for; null: steps")
    validate_every: Count = Field(description="updates between two looks at the validation split")
    selection: Literal["val", "test"] = Field(
        description="split whose CIDEr picks the weights; test is for comparison with the reference code only"
    )

    @model_validator(mode="after")
    def _consistent(self) -> "Caption":
        if self.decoder_width % self.decoder_heads:
            raise ValueError(
                f"decoder_width: {self.decoder_width} is not a multiple of decoder_heads ({self.decoder_heads})"
            )
        _check_schedule(self.steps, self.planned_steps)
        return self


class Own(Section):
    """What one captioner has for itself; of its training, what is not null goes before ``caption``."""

    steps: Count | None = None
    batch: Count | None = None
    learning_rate: Rate | None = None


class CCRC(Own):
    """Sizes of its chains, and what its ablations switch off."""

    language_model: Elsewhere | None = Field(
        description="folder of a causal language model that transformers reads, or its name on a hub; it stays as it "
        "is, beside adapters. null: a small one, trained from scratch"
    )
    lora: Count = Field(description="rank of the adapters of a language_model (peft)")
    width: Annotated[int, Field(ge=8, multiple_of=8)] = Field(
        description="of the visual tokens and the small language model"
    )
    layers: Count = Field(description="of the small language model")
    heads: Count = Field(description="of the small language model and of the fusion")
    fusion_layers: Count
    places: Count = Field(description="that the language model reads, those that differ most")
    mask_width: Annotated[int, Field(ge=8, multiple_of=8)]
    mask_tokens: Count
    mask_rounds: Count = Field(description="in which mask tokens look at both scales")
    mask_weight: Rate = Field(description="of the masks' losses, that of the answer being 1")
    mask_every: Count = Field(description="masks, which take most of an update's time, are trained in one of so many")
    gate: bool = Field(description="attention is weighed by how much a place differs")
    priors: bool = Field(description="segmenting starts from the gated attention map and the hidden state of <seg>")
    refiner: bool = Field(description="mask tokens look at the features")
    learns: Literal["both", "captions", "masks"]

    @model_validator(mode="after")
    def _consistent(self) -> "CCRC":
        for name in ("width", "mask_width"):
            if getattr(self, name) % self.heads:
                raise ValueError(f"{name}: {getattr(self, name)} is not a multiple of heads ({self.heads})")
        if self.width // self.heads % 2:
            raise ValueError(f"width: {self.width} over {self.heads} heads is odd; the language model needs it even")
        if self.language_model and self.learns == "masks":
            raise ValueError("learns: 'masks' writes nothing and has no language_model; set that to null")
        return self


class Diffusion(Own):
    """Sizes and training of a text diffusion under the condition of a visual-difference encoder."""

    embedding: Count = Field(description="e, numbers of a word's vector; the fewer, the longer noise hides the word")
    width: Annotated[int, Field(ge=8, multiple_of=8)] = Field(description="of encoder and denoiser")
    heads: Count
    encoder_layers: Count = Field(description="blocks of the visual-difference encoder")
    layers: Count = Field(description="blocks of the denoiser")
    draws: Count = Field(description="captions of a pair that an update denoises, each at a level of its own")
    noise: Rate = Field(description="factor on the noise of the sqrt schedule")
    lead: Weight = Field(description="how far the first word is ahead of the last one on the way out of the noise")
    shuffled: Share = Field(description="of the rows of an update whose words leave the noise in a random order")
    self_conditioning: Share = Field(description="of the updates that feed back an earlier estimate; 0: never")
    clamping: Share = Field(description="of the levels, the lowest, at which estimates are rounded to words")
    average: Annotated[float, Field(ge=0, lt=1)] = Field(
        description="share that the averaged weights, which sentences are sampled with, keep at an update"
    )

    @model_validator(mode="after")
    def _consistent(self) -> "Diffusion":
        if self.width % self.heads:
            raise ValueError(f"width: {self.width} is not a multiple of heads ({self.heads})")
        return self


class MCTCCDiff(Diffusion):
    """mct_ccdiff; 0 leaves a part out."""

    mediators: Annotated[int, Field(ge=0)] = Field(
        description="between words and pictures; 0: words look at the pictures directly"
    )
    tecl: Weight = Field(description="weight of the text embedding contrastive loss")
    context: Weight = Field(description="weight of the context-augmented denoising term")


class Decider(Diffusion):
    """decider; 0 leaves a part out."""

    code: Count = Field(description="d of the code, the condition")
    bottleneck: Weight = Field(description="beta, of the code's divergence from N(0, I); 0: the code is its mean")
    warmup: Count = Field(description="updates in which beta rises")
    cross_modal: Weight = Field(description="weight of the contrast between codes and captions")
    contrast: Weight = Field(description="weight of the contrastive diffusion loss")
    contrasted: Count = Field(description="pairs of a batch that it takes at most")
    negatives: Count = Field(description="captions of other pairs in it, per pair")
    temperature: Rate = Field(description="that divides denoising losses in it")
    positive: Weight = Field(description="length of the step that makes a code a hard positive")
    negative: Weight = Field(description="length of the step that makes another caption a hard negative")


class Evaluate(Section):
    beams: Annotated[int, Field(ge=1, le=16)] = Field(description="1: greedy")
    length_penalty: Annotated[float, Field(ge=0, le=4)] = Field(
        description="a sentence's score is its log-probability over words to this power; 0: none, 1: the mean per word"
    )
    no_repeat: Annotated[int, Field(ge=0)] = Field(
        description="so many words in a row are not said twice in a sentence; 0: no such rule"
    )
    steps: Annotated[int, Field(ge=1, le=1000)] = Field(
        description="from noise to a sentence, of captioners that sample (mct_ccdiff, decider)"
    )
    candidates: Annotated[int, Field(ge=1, le=64)] = Field(
        description="sentences they sample, of which the one is taken that agrees most with the others"
    )
    batch: Count
    pictures: Annotated[int, Field(ge=0)] = Field(description="test pairs shown on the page")
    sentence_model: Elsewhere | None = Field(
        description="folder of a model for sentence_similarity; null: the installed one, if there is one"
    )


class Register(Section):
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]+$")] = Field(description="registered model")
    alias: Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z_-]*$")] = Field(
        description="alias that the new version gets"
    )

    @model_validator(mode="after")
    def _consistent(self) -> "Register":
        if self.alias == "latest":
            raise ValueError("alias: 'latest' is reserved by the registry; use challenger")
        return self


class Hardware(Section):
    device: Literal["auto", "cpu", "cuda"]
    devices: Count = Field(
        description="processes, each with a GPU or a part of the cores, that share stage 1's and 2's batches"
    )
    threads: Annotated[int, Field(ge=0)] = Field(
        description="CPU threads of a process; 0: all cores. Results depend on it"
    )
    precision: Literal["float32", "bfloat16"] = Field(
        description="of products in stage 1, stage 2 and evaluate; weights stay float32"
    )
    deterministic: bool = Field(
        description="false: a GPU may use faster algorithms that give other bits each time"
    )
    checkpointing: bool = Field(
        description="training computes inner values of the encoder twice rather than keeping them: less memory, more "
        "time, the same numbers"
    )


def _check_schedule(steps: int, planned: int | None) -> None:
    if planned is not None and planned < steps:
        raise ValueError(f"planned_steps: {planned} must not be fewer than steps ({steps})")


class Params(Section):
    """Everything in ``params.yaml``."""

    seed: Annotated[int, Field(ge=0, lt=2**31)]
    replicate: Annotated[int, Field(ge=0, lt=2**20)] = Field(
        description="another seed for stage 1 and stage 2 alone; data, frames, draws and tokenizer stay"
    )
    dataset: Dataset
    captioners: tuple[CaptionerName, ...]
    prepare: Prepare
    validate_: Validate = Field(alias="validate")
    interpolate: Interpolate
    sample: Sample
    tokenizer: Tokenizer
    tokenize: Tokenize
    pretrain: Pretrain
    caption: Caption
    static: Own
    procap: Own
    ccrc: CCRC
    mct_ccdiff: MCTCCDiff
    decider: Decider
    evaluate: Evaluate
    register_: Register = Field(alias="register")
    hardware: Hardware

    @model_validator(mode="after")
    def _consistent(self) -> "Params":
        if self.sample.kept > self.interpolate.frames:
            raise ValueError(
                f"sample.kept: {self.sample.kept} frames cannot be kept of "
                f"interpolate.frames = {self.interpolate.frames}"
            )
        if self.prepare.image_size % self.tokenizer.reduction:
            raise ValueError(
                f"prepare.image_size: {self.prepare.image_size} is not a multiple of {self.tokenizer.reduction}, "
                "which tokenizer.multipliers ask for"
            )
        if self.interpolate.method == "truth" and not (self.dataset.name == "rendered" and self.prepare.scenes.truth):
            raise ValueError(
                "interpolate.method: 'truth' needs dataset.name: rendered and prepare.scenes.truth: true; "
                "no other corpus knows its procedure"
            )
        if self.pretrain.encoder.start == "comparison" and self.caption.decoder == "reference":
            raise ValueError("caption.decoder: the reference's needs pretrain.encoder.start: usual")
        if self.caption.decoding == "reference" and self.evaluate.beams != 1:
            raise ValueError(f"evaluate.beams: {self.evaluate.beams}, but caption.decoding: reference is greedy")
        if self.caption.decoding == "reference" and self.evaluate.no_repeat:
            raise ValueError("evaluate.no_repeat: caption.decoding: reference knows no such rule; it must be 0")
        if self.caption.between == "frames" and self.interpolate.method not in ("rife", "crossfade"):
            raise ValueError(
                "caption.between: 'frames' needs interpolate.method rife or crossfade, which a trained captioner can "
                f"run by itself; it is {self.interpolate.method}"
            )
        if self.caption.between == "frames" and self.interpolate.checkpoint:
            raise ValueError(
                "caption.between: 'frames' takes the interpolation's own weights, for a trained captioner has no "
                "others; interpolate.checkpoint must be null"
            )
        for step, section in (("pretrain", self.pretrain), ("caption", self.caption)):
            if section.batch < self.hardware.devices * section.accumulate:
                raise ValueError(
                    f"{step}.batch: {section.batch} pairs cannot be shared by hardware.devices = "
                    f"{self.hardware.devices} in {section.accumulate} parts each ({step}.accumulate)"
                )
        if not self.captioners:
            raise ValueError("captioners: [] names none")
        if len(set(self.captioners)) < len(self.captioners):
            raise ValueError(f"captioners: {list(self.captioners)} names one twice")
        return self

    @property
    def training_seed(self) -> int:
        """Seed of stage 1 and stage 2: ``seed`` itself for ``replicate`` 0, and otherwise one that no ``seed`` is."""
        return self.seed + 2**31 * self.replicate

    @property
    def machine(self) -> dict[str, Any]:
        """What of ``hardware`` counts where one process computes: not, how many share the batches of a training."""
        known = self.model_dump(include={"hardware": {"device", "threads", "precision", "deterministic"}})
        return known["hardware"]

    @property
    def frames(self) -> int:
        """F, frames that the procedure encoder sees: before, k kept, after."""
        return self.sample.kept + 2

    def own(self, captioner: str) -> Own:
        """The section of a captioner."""
        return getattr(self, captioner)

    def section(self, step: str) -> Section:
        """The section of a step."""
        return getattr(self, step + "_" if step in ("validate", "register") else step)


def load_params(path: Path) -> Params:
    """Read and check ``params.yaml``.

    Raises BadInput that names file, key, value and what is allowed.
    """
    from ruamel.yaml import YAML, YAMLError

    try:
        raw = YAML(typ="safe").load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BadInput(
            "there is no parameter file", where=str(path), expected="params.yaml", do="run from the project's folder"
        ) from None
    except (YAMLError, UnicodeDecodeError) as error:
        raise BadInput(
            f"not YAML: {' '.join(str(error).split())}", where=str(path), expected="plain YAML", do="mend that line"
        ) from None
    if not isinstance(raw, dict):
        raise BadInput(
            f"a {type(raw).__name__} at the top", where=str(path), expected="sections", do="see infra/presets/"
        )
    return check_params(raw, where=str(path))


def check_params(raw: dict[str, Any], where: str) -> Params:
    """Check parameters that were already read; ``where`` is named in complaints."""
    try:
        return Params.model_validate(raw)
    except ValidationError as error:
        problems = [_explain(problem, raw) for problem in error.errors()]
        raise BadInput(
            problems[0][0],
            where="; ".join(f"{where}: {key}" for _, key, _ in problems),
            expected="; ".join(dict.fromkeys(allowed for *_, allowed in problems)),
            do="mend params.yaml, or write a preset with `procap preset <name>`" + _all(problems),
        ) from None


def _all(problems: list[tuple[str, str, str]]) -> str:
    if len(problems) == 1:
        return ""
    return f" ({len(problems)} problems in all: " + "; ".join(what for what, *_ in problems) + ")"


def _explain(problem: Any, raw: dict[str, Any]) -> tuple[str, str, str]:
    """(what, key, allowed) of one pydantic error."""
    location = [str(part) for part in problem["loc"]]
    key = ".".join(location) or "(top level)"
    if problem["type"] == "extra_forbidden":
        known = _known_keys(location[:-1])
        near = difflib.get_close_matches(location[-1], known, 1)
        hint = f"; did you mean '{near[0]}'?" if near else ""
        return f"unknown key '{key}' (value {problem['input']!r}){hint}", key, "one of " + ", ".join(known)
    if problem["type"] == "missing":
        return f"missing key '{key}'", key, f"a value for '{location[-1]}'"
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "value_error":
        inner = message.split(":", 1)[0]
        path = ".".join([*location, inner]) if inner.replace(".", "").replace("_", "").isalnum() else key
        return message, path, "values that fit together"
    return f"'{key}' is {problem['input']!r}", key, message[0].lower() + message[1:]


def _known_keys(location: list[str]) -> list[str]:
    model: Any = Params
    for part in location:
        fields = {(field.alias or name): field for name, field in model.model_fields.items()}
        if part not in fields:
            return []
        annotation = fields[part].annotation
        models = [a for a in (annotation, *get_args(annotation)) if isinstance(a, type) and issubclass(a, BaseModel)]
        if not models:
            return []
        model = models[0]
    return [field.alias or name for name, field in model.model_fields.items()]
