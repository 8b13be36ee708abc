"""CIDEr alone, without Java: what stage 2 is validated with."""

from collections.abc import Mapping, Sequence


def cider(predictions: Mapping[str, str], references: Mapping[str, Sequence[str]]) -> tuple[float, dict[str, float]]:
    """CIDEr times 100 of the corpus and of each pair; sentences are words between single spaces.

    What pycocoevalcap calls CIDEr, and papers report, is CIDEr-D (Vedantam et al. 2015, section 5): counts are clipped
    and lengths that differ cost; the paper's plain CIDEr does neither. 0 for any text when all pairs have the same
    references, because words that occur everywhere weigh nothing.
    """
    from pycocoevalcap.cider.cider import Cider

    names = list(predictions)
    corpus, pairs = Cider().compute_score(
        {name: list(references[name]) for name in names}, {name: [predictions[name]] for name in names}
    )
    return 100 * float(corpus), {name: 100 * float(value) for name, value in zip(names, pairs, strict=True)}
