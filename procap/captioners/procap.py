"""ProCap: imagines the procedure between before and after, then describes it (paper, section 3.2)."""

import torch

from procap.captioners.decoding import WordByWord
from procap.shapes import Float, Tensor


class ProCap(WordByWord):
    """Implicit procedure captioning; stage 1 (step ``pretrain``) gives its encoder the first weights."""

    pretrained = True

    def imagine_tokens(self, features: Float[Tensor, "b t n c"]) -> Float[Tensor, "b k n v"]:
        """What stage 1's head reads off the queries: logits over the codebook for the frames nobody saw."""
        with torch.no_grad():
            return self.network.encoder.token_head(self.network.imagine(features)[:, 1:-1])
