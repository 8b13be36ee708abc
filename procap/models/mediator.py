"""How a text looks at visual-difference tokens: through mediators, or directly."""

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from torch import nn

from procap.models.layers import Attention, Blocked
from procap.models.looking import weights
from procap.shapes import Float, Tensor


class MediatorAttention(Attention):
    """softmax(Q M^T) softmax(M K^T) V: a few mediators M, pooled from the text's queries Q, stand between the two.

    Costs O((l + n) mediators d) where direct attention costs O(l n d). Our formulation of MCT-CCDiff's
    mediator-bridging transformer, in the form of agent attention (Han et al., 2023); the paper's text gives no formula.
    """

    def __init__(self, width: int, heads: int, memory_width: int, mediators: int) -> None:
        super().__init__(width, heads, memory_width)
        self.pool = nn.Parameter(torch.randn(mediators, width) * width**-0.5)

    def bridge(
        self, x: Float[Tensor, "rows l d"]
    ) -> tuple[Float[Tensor, "rows heads l d2"], Float[Tensor, "rows heads mediators d2"]]:
        """(queries, mediators) of each sentence."""
        queries = self.split(self.query(x))
        pool = repeat(self.split(self.pool[None]), "1 heads a d2 -> rows heads a d2", rows=len(x))
        return queries, F.scaled_dot_product_attention(pool, queries, queries)

    def attend(
        self,
        x: Float[Tensor, "rows l d"],
        keys: Float[Tensor, "b heads m d2"],
        values: Float[Tensor, "b heads m d2"],
        *,
        causal: bool = False,
        blocked: Blocked | None = None,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "rows l d"]:
        """Sentences of one pair stand next to one another; each has mediators of its own."""
        queries, mediators = self.bridge(x)
        asked = rearrange(mediators, "(b r) heads a d2 -> b heads (r a) d2", b=len(keys))
        gathered = F.scaled_dot_product_attention(asked, keys, values)
        gathered = rearrange(gathered, "b heads (r a) d2 -> (b r) heads a d2", a=len(self.pool))
        attended = F.scaled_dot_product_attention(queries, mediators, gathered)
        return self.out(rearrange(attended, "rows heads l d2 -> rows l (heads d2)"))

    def weights(self, x: Float[Tensor, "b l d"], keys: Float[Tensor, "b heads m d2"]) -> Float[Tensor, "b heads l m"]:
        """softmax(Q M^T) softmax(M K^T): how much each word takes from each token; sums to 1."""
        queries, mediators = self.bridge(x)
        scale = queries.shape[-1] ** -0.5
        return (scale * queries @ mediators.mT).softmax(-1) @ (scale * mediators @ keys.mT).softmax(-1)


class DirectAttention(Attention):
    """softmax(Q K^T) V, for sentences of one pair that stand next to one another."""

    def attend(
        self,
        x: Float[Tensor, "rows l d"],
        keys: Float[Tensor, "b heads m d2"],
        values: Float[Tensor, "b heads m d2"],
        *,
        causal: bool = False,
        blocked: Blocked | None = None,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "rows l d"]:
        """As if all sentences of a pair were one."""
        return super().attend(x.reshape(len(keys), -1, x.shape[-1]), keys, values).reshape(x.shape)

    def weights(self, x: Float[Tensor, "b l d"], keys: Float[Tensor, "b heads m d2"]) -> Float[Tensor, "b heads l m"]:
        """How much each word takes from each token; sums to 1."""
        return weights(self, x, keys)
