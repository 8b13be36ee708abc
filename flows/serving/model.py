"""The registered model, as MLflow's "models from code": it opens a bundle and captions pairs of pictures.

In:  a table with columns ``before`` and ``after``, each a PNG or JPEG file as base64 text; any size.
Out: a table with columns ``caption`` and ``probability`` (of the sentence, in [0, 1]).

MLflow runs this file when the model is loaded; the classes it needs from ``procap`` travel with the model.
"""

import base64
import binascii
import io
import warnings
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
from mlflow.pyfunc import PythonModel

LARGEST = 40_000_000
"""Pixels of a picture; larger ones are refused before they are unpacked."""


class ChangeCaptioner(PythonModel):
    """Image change captioning: two pictures in, one sentence out."""

    def load_context(self, context: Any) -> None:
        from procap.checkpoints.midpoints import load_midpoint
        from procap.training.bundle import load_bundle

        self.bundle = load_bundle(Path(context.artifacts["bundle"]), load_midpoint=load_midpoint)

    def predict(self, context, model_input, params=None):  # MLflow would take types here for a signature
        import pandas as pd

        rows = []
        for number, (before, after) in enumerate(zip(model_input["before"], model_input["after"], strict=True)):
            ends = decode_picture(before, f"row {number}, before"), decode_picture(after, f"row {number}, after")
            (caption,) = self.bundle.caption(*(picture[None] for picture in ends))
            rows.append((caption.text, float(caption.probability)))
        return pd.DataFrame(rows, columns=["caption", "probability"])


def decode_picture(text: str, where: str) -> np.ndarray:
    """A picture (uint8, h w 3) from base64 text; ValueError that names ``where`` otherwise."""
    from PIL import Image

    try:
        with warnings.catch_warnings(action="error", category=Image.DecompressionBombWarning):
            image = Image.open(io.BytesIO(base64.b64decode(text, validate=True)), formats=("PNG", "JPEG"))
            if image.width * image.height > LARGEST:
                raise ValueError(f"{image.width}x{image.height} pixels, at most {LARGEST} are taken")
            return np.asarray(image.convert("RGB"))
    except (binascii.Error, OSError, SyntaxError, ValueError, TypeError, Image.DecompressionBombWarning) as error:
        raise ValueError(f"{where}: not a PNG or JPEG file in base64 ({error})") from None


mlflow.models.set_model(ChangeCaptioner())
