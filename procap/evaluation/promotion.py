"""Whether a registered model may take the champion's place: each condition by itself, and what was seen."""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from procap.datasets.pairs import Pairs
from procap.errors import BadInput
from procap.evaluation.comparison import ACCURACIES, MEANS, System, compare

METRICS = (*MEANS, *ACCURACIES)
"""What can decide: means over pairs, for which a paired bootstrap gives an interval."""

ANSWERS = 3
"""Test pairs that the model, loaded back, has to caption."""

AT_ONCE = 64


@dataclass(frozen=True)
class Candidate:
    """What is known of a registered model when it is judged."""

    name: str
    bundle: str
    """Digest of the bundle."""
    test_data: str
    """``test_digest`` of the pairs that it was scored on."""
    predictions: Mapping[str, Mapping[str, Any]]
    metrics: Mapping[str, Any]
    critical: int | None = None
    """Broken critical rules of its corpus; None where no validation report is known."""
    selected_on: str = "unknown"
    answers: Sequence[tuple[str, str]] = ()
    """Of some test pairs: the sentence when it was evaluated, and the one it gives when loaded from the registry."""
    complaint: str = ""
    """Why it did not answer."""
    card: str = ""
    commit: str = ""
    dirty: bool = True


@dataclass(frozen=True)
class Gate:
    """One condition of a promotion."""

    name: str
    passed: bool
    seen: str


@dataclass(frozen=True)
class Verdict:
    """All conditions; a model is promoted when every one holds."""

    gates: tuple[Gate, ...]

    @property
    def promoted(self) -> bool:
        return all(gate.passed for gate in self.gates)


def judge(challenger: Candidate, champion: Candidate | None, *, metric: str, margin: float) -> Verdict:
    """Hold a challenger against the champion and against what every model that serves has to fulfil.

    It has to be better: the 95 % interval of the difference (paired bootstrap over test pairs) lies above ``margin``.
    A negative margin asks only that it be no worse than that. Without a champion this condition holds.
    Raises BadInput for a metric that is no mean over pairs.
    """
    if metric not in METRICS:
        raise BadInput(
            f"'{metric}' cannot decide: no interval is known for its difference",
            where="--metric",
            expected="one of " + ", ".join(METRICS),
            do="name one of them",
        )
    if not math.isfinite(margin):
        raise BadInput(f"a margin of {margin}", where="--margin", expected="a number", do="try 0, or -0.01")
    same = champion is None or (bool(champion.test_data) and champion.test_data == challenger.test_data)
    return Verdict(
        (
            _data(challenger, champion, same),
            _gain(challenger, champion if same else None, metric, margin, champion is not None and not same),
            Gate("selection", challenger.selected_on == "val", f"weights picked on {challenger.selected_on}"),
            _validation(challenger),
            _answers(challenger),
            _card(challenger),
            _commit(challenger),
        )
    )


def test_digest(pairs: Pairs) -> str:
    """sha256 of the test split: ids, groups, change types, sentences and pictures, in the table's order."""
    split = pairs.split("test")
    total = hashlib.sha256()
    columns = (split.table[name] for name in ("id", "group", "change_type", "captions"))
    for name, group, kind, captions in zip(*columns, strict=True):
        row = [str(name), str(group), str(kind), [str(caption) for caption in captions]]
        total.update(json.dumps(row, ensure_ascii=False).encode() + b"\n")
    for start in range(0, len(split), AT_ONCE):
        rows = slice(start, start + AT_ONCE)
        for pictures in (split.before(rows), split.after(rows)):
            total.update(f"{pictures.shape[1:]}".encode() + np.ascontiguousarray(pictures).tobytes())
    return total.hexdigest()


def _data(challenger: Candidate, champion: Candidate | None, same: bool) -> Gate:
    if not challenger.predictions:
        return Gate("test data", False, "no test scores are kept with this version; register it again")
    pairs = f"{len(challenger.predictions)} pairs, digest {challenger.test_data[:12]}"
    if same or champion is None:
        return Gate("test data", True, pairs if champion is None else f"the same {pairs}")
    of_champion = champion.test_data[:12] or "unknown"
    return Gate("test data", False, f"{pairs}; the champion was scored on others ({of_champion})")


def _gain(
    challenger: Candidate, champion: Candidate | None, metric: str, margin: float, incomparable: bool
) -> Gate:
    if incomparable:
        return Gate(metric, False, "not comparable")
    if metric not in challenger.metrics:
        why = challenger.metrics.get("skipped", {}).get(metric, "no value")
        return Gate(metric, False, f"it was not scored: {why}")
    value = float(challenger.metrics[metric])
    if champion is None:
        return Gate(metric, True, f"{value:.4g}, no champion yet")
    systems = [
        System(name, [one.predictions], [one.metrics], {})
        for name, one in (("champion", champion), ("challenger", challenger))
    ]
    cell = compare(systems, "champion")["challenger"][metric]
    if cell.interval is None or cell.difference is None:
        return Gate(metric, False, "the champion was not scored on it")
    low, high = cell.interval
    seen = f"{value - cell.difference:.4g} -> {value:.4g} ({cell.difference:+.3g}, 95 % [{low:+.3g}, {high:+.3g}])"
    return Gate(metric, low > margin, f"{seen}, has to lie above {margin:g}")


def _validation(challenger: Candidate) -> Gate:
    if challenger.critical is None:
        return Gate("validation", False, "no report is kept with this version")
    return Gate("validation", challenger.critical == 0, f"{challenger.critical} critical rules broken")


def _answers(challenger: Candidate) -> Gate:
    if challenger.complaint:
        return Gate("answers", False, challenger.complaint)
    spoken = [said for _, said in challenger.answers if said.strip()]
    same = sum(expected == said for expected, said in challenger.answers)
    seen = f"loaded back, it captions {len(spoken)} of {ANSWERS} test pairs, {same} as when it was evaluated"
    return Gate("answers", len(spoken) == ANSWERS, seen)


def _card(challenger: Candidate) -> Gate:
    there = bool(challenger.bundle) and challenger.bundle in challenger.card
    wrong = "of another bundle" if challenger.card else "missing"
    return Gate("card", there, f"{len(challenger.card.splitlines())} lines" if there else wrong)


def _commit(challenger: Candidate) -> Gate:
    if not challenger.commit:
        return Gate("commit", False, "trained outside a git repository")
    changed = "" if not challenger.dirty else ", with changes that no commit holds: commit, then `procap finalize`"
    return Gate("commit", not challenger.dirty, challenger.commit[:12] + changed)
