"""The registered model, as MLflow's "models from code": it opens a bundle and captions pairs of pictures.

In:  a table with columns ``before`` and ``after``, each a picture file (PNG, JPEG, ...) as base64 text; any size, the
     two of a pair the same. With the parameter ``paths`` they are paths instead, below the folder that the environment
     variable PROCAP_PICTURES names; without it no file is opened, whoever asks.
Out: a table with columns ``caption``, ``probability`` (of the sentence), ``change_probability`` (null where the
     training captions never say that nothing changed), ``words`` and ``word_probabilities`` (lists). All in [0, 1].

MLflow runs this file when the model is loaded; the classes it needs from ``procap`` travel with the model.
"""

import base64
import binascii
import os
from pathlib import Path
from typing import Any

import mlflow
from mlflow.exceptions import MlflowException
from mlflow.pyfunc import PythonModel

FOLDER = "PROCAP_PICTURES"
COLUMNS = ("caption", "probability", "change_probability", "words", "word_probabilities")
BATCH = 16


class ChangeCaptioner(PythonModel):
    """Image change captioning: two pictures in, one sentence out."""

    def load_context(self, context: Any) -> None:
        from procap.captioning.captioner import load_captioner

        self.captioner = load_captioner(context.artifacts["bundle"])

    def predict(self, context, model_input, params=None):  # MLflow would take types here for a signature
        import pandas as pd

        from procap.captioners import Decoding
        from procap.errors import BadInput

        params = params or {}
        take = below_folder if params.get("paths") else decoded
        try:
            pairs = [
                (take(before, f"row {number}, before"), take(after, f"row {number}, after"))
                for number, (before, after) in enumerate(zip(model_input["before"], model_input["after"], strict=True))
            ]
            said = list(self.captioner.stream(pairs, BATCH, decoding=Decoding(int(params.get("beams", 1)))))
        except BadInput as complaint:
            raise MlflowException.invalid_parameter_value(str(complaint)) from None
        rows = [
            (one.text, float(one.probability), one.change_probability, list(one.words), list(one.word_probabilities))
            for one in said
        ]
        return pd.DataFrame(rows, columns=list(COLUMNS)).astype({"change_probability": object})


def decoded(text: Any, where: str) -> bytes:
    """A file's bytes from base64 text. Raises BadInput."""
    from procap.errors import BadInput

    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError, TypeError) as error:
        raise BadInput(
            f"no base64 ({error})", where=where, expected="a picture file as base64 text", do="encode the file's bytes"
        ) from None


def below_folder(path: Any, where: str) -> Path:
    """A path below the folder that whoever serves the model allows. Raises BadInput."""
    from procap.errors import BadInput

    allowed = os.environ.get(FOLDER)
    if not allowed:
        raise BadInput(
            "paths are not taken here",
            where=where,
            expected=f"base64, or a model that is served with {FOLDER}=<folder>",
            do="send the picture itself",
        )
    folder = Path(allowed).resolve()
    target = (folder / str(path)).resolve()
    if not target.is_relative_to(folder):
        raise BadInput(
            "the path leads out of the folder", where=where, expected=f"a path below {FOLDER}", do="name another file"
        )
    return target


mlflow.models.set_model(ChangeCaptioner())
