"""What the service answers, and how pictures and maps become text."""

import base64
import io
from typing import Any

import numpy as np
from jaxtyping import Float, UInt8
from pydantic import BaseModel, Field


class Model(BaseModel):
    """Which model answered."""

    address: str
    version: str | None = Field(description="in the registry; null for a folder")
    digest: str = Field(description="sha256 of the bundle's manifest: the same digest, the same answers")
    captioner: str
    image_size: int = Field(description="pixels per side to which pictures are resized, as in training")
    card: bool = Field(description="whether /v1/card has a model card")


class Milliseconds(BaseModel):
    """Where the time went."""

    reading: float = Field(description="decoding and resizing the pictures")
    waiting: float = Field(description="in the queue, for the slowest pair")
    model: float = Field(description="the batch that the slowest pair was in")
    total: float = Field(description="from the first byte of the request to the answer")


class Reasoning(BaseModel):
    """What the model says of the change before it describes it."""

    change: str = Field(description="color, material, add, drop, move, none or unknown")
    object: str = Field(description="what changed; empty where nothing did")
    where: str = Field(description="a cell of a 3 x 3 grid, such as 'top left'; nowhere, or unknown")


class Captioned(BaseModel):
    """One sentence about one pair. All probabilities are in [0, 1]."""

    text: str
    words: list[str]
    word_probabilities: list[float] = Field(description="of each word after those before it")
    probability: float = Field(description="of the whole sentence")
    change_probability: float | None = Field(description="that anything changed; null where the model cannot say")
    change_mask: str | None = Field(
        description="what changed, as PNG in base64: white; null unless the model segments and finds it can be outlined"
    )
    reasoning: Reasoning | None = Field(description="null unless the model reasons first")


class Draft(BaseModel):
    """The sentence at one step of its sampling."""

    text: str
    probability: float


class Reasons(BaseModel):
    """Pictures are PNG files in base64, square as the model sees them. In gray ones 255 stands for 1.

    What the model cannot tell is null, a list is empty.
    """

    attention_before: list[str] | None = Field(description="per word: where the model looked in the picture before")
    attention_after: list[str] | None
    attention_frames: list[list[float]] | None = Field(description="per word: the share of each frame; sums to 1")
    change_map: str | None = Field(description="which places speak for the sentence, or where the model sees a change")
    frames: list[str] = Field(description="before, what the model imagines between, after")
    drafts: list[Draft] = Field(description="of models that sample: the sentence at every step, from noise to the end")


class Explained(Captioned):
    """A sentence with its reasons."""

    explanation: Reasons | None = Field(description="null for models that cannot tell")


class Captions(BaseModel):
    """Of all pairs, in their order."""

    captions: list[Captioned]
    model: Model
    milliseconds: Milliseconds


class Explanations(BaseModel):
    """Of all pairs, in their order."""

    captions: list[Explained]
    model: Model
    milliseconds: Milliseconds


class Ready(BaseModel):
    """Whether pairs are taken, and what hinders a newer model."""

    ready: bool
    model: Model
    follows: str | None = Field(description="the alias whose model answers; null where the model stays")
    problem: dict[str, str] | None = Field(description="why the alias' present model does not answer, or null")


def model(about: Any) -> Model:
    """A captioner's ``about``, without its card."""
    return Model(
        address=about.address, version=None if about.version is None else str(about.version), digest=about.digest,
        captioner=about.captioner, image_size=about.image_size, card=about.card is not None,
    )  # fmt: skip


def captioned(caption: Any) -> Captioned:
    """A library's ``Caption`` as an answer."""
    return Captioned(**_plain(caption))


def explained(caption: Any) -> Explained:
    """The same with its explanation."""
    why = caption.explanation
    reasons = None if why is None else Reasons(
        attention_before=_grays(why.attention_before),
        attention_after=_grays(why.attention_after),
        attention_frames=None if why.attention_frames is None else np.asarray(why.attention_frames).round(4).tolist(),
        change_map=None if why.change_map is None else gray(why.change_map),
        frames=[png(frame) for frame in why.frames],
        drafts=[Draft(text=draft.text, probability=draft.probability) for draft in why.drafts],
    )  # fmt: skip
    return Explained(**_plain(caption), explanation=reasons)


def _grays(maps: Float[np.ndarray, "words h w"] | None) -> list[str] | None:
    return None if maps is None else [gray(one) for one in maps]


def gray(values: Float[np.ndarray, "h w"]) -> str:
    """Values in [0, 1] as a gray PNG."""
    return png((np.clip(values, 0, 1) * 255).round().astype(np.uint8))


def png(pixels: UInt8[np.ndarray, "h w *c"]) -> str:
    """A PNG file in base64."""
    from PIL import Image

    out = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(out, "PNG")
    return base64.b64encode(out.getvalue()).decode("ascii")


def _plain(caption: Any) -> dict[str, Any]:
    mask = caption.change_mask
    return {
        "text": caption.text,
        "words": list(caption.words),
        "word_probabilities": [float(p) for p in caption.word_probabilities],
        "probability": float(caption.probability),
        "change_probability": None if caption.change_probability is None else float(caption.change_probability),
        "change_mask": None if mask is None else png(np.asarray(mask, np.uint8) * 255),
        "reasoning": None if caption.reasoning is None else Reasoning(**vars(caption.reasoning)),
    }
