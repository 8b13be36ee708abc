"""LEVIR-MCI (Liu et al., 2024): LEVIR-CC with a mask per pair that tells two kinds of change apart.

A mask has 0 where nothing changed, 128 for the first kind and 255 for the second; which of them is road and which
building the release does not say.
"""

from pathlib import Path

from procap.datasets.corpus import Corpus, Reading, first_there
from procap.datasets.levir_cc import PUBLISHED, read_published

TREE = """\
LevirCCcaptions.json  as in LEVIR-CC
images/train/A/       train_000016.png ...   before; likewise val, test
images/train/B/       train_000016.png ...   after
images/train/label/   train_000016.png ...   0: unchanged, 128 and 255: two
                                             kinds of change
"""


def read(folder: Path) -> Reading:
    """Every pair in order of the file."""
    path = first_there(folder, ["LevirCCcaptions.json"], "LevirCCcaptions.json and images/")
    return Reading(tuple(read_published(path, masked=True)))


CORPUS = Corpus("levir_mci", "LEVIR-MCI: LEVIR-CC with masks of two kinds of change", TREE, read, PUBLISHED)
