"""Pictures inside an HTML page, which then needs no other file."""

import base64
import io

import numpy as np
from jaxtyping import UInt8


def picture(pixels: UInt8[np.ndarray, "h w *c"]) -> str:
    """A PNG as the address of an image."""
    from PIL import Image

    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(out.getvalue()).decode()
