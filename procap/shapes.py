"""The axis alphabet. Annotations, einops patterns and comments use these letters and no others.

    b   pairs in a batch                  l   words of a caption, marks included
    t   frames in time, before is index 0 v   words of the vocabulary
        and after is index -1             c h w   channels, height, width of a picture
    n   tokens of one frame, row by row   d   width of a vector
    k   inner frames that were kept       m   vectors that a decoder reads
    s   places of an encoder's sequence

Pictures are RGB. As bytes (``UInt8``) they are ``h w c``; as numbers (``Float``) they are ``c h w`` in [0, 1].
"""

from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

Pictures = Float[Tensor, "b 3 h w"]
Features = Float[Tensor, "b t n c"]
Tokens = Int[Tensor, "b t n"]
Words = Int[Tensor, "b l"]
Scalar = Float[Tensor, ""]

__all__ = ["Bool", "Features", "Float", "Int", "Pictures", "Scalar", "Tensor", "Tokens", "UInt8", "Words"]
