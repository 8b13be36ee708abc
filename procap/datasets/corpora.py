"""Every corpus that can be read from disk, by the name that ``dataset.name`` and ``procap import`` use."""

from collections.abc import Mapping

from procap.datasets import (
    birds_to_words,
    clevr_change,
    clevr_dc,
    image_editing_request,
    levir_cc,
    levir_mci,
    spot_the_diff,
    table,
)
from procap.datasets.corpus import Corpus

CORPORA: Mapping[str, Corpus] = {
    module.CORPUS.name: module.CORPUS
    for module in (
        clevr_change,
        clevr_dc,
        spot_the_diff,
        image_editing_request,
        birds_to_words,
        levir_cc,
        levir_mci,
        table,
    )
}
