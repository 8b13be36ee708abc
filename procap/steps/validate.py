"""Step ``validate``: nothing is trained on a corpus that breaks its own rules."""

from pathlib import Path
from typing import Any

import numpy as np

from procap.config import Params
from procap.datasets.pairs import SHIFT, SPLITS, Pairs
from procap.datasets.vocabulary import MARKS
from procap.errors import BadInput
from procap.evaluation.quality import Finding, caption_facts, judge, pair_facts, rules, split_facts, type_facts
from procap.files import atomic_folder, write_json
from procap.report import Report, silent


def run(params: Params, data: Path, *, report: Report = silent) -> None:
    """Write ``data/validate``: report.json and docs/.

    Raises BadInput, after both are written, where a critical rule is broken.
    """
    pairs = Pairs.read(data / "prepare")
    tables = {
        "pairs": pair_facts(pairs),
        "captions": caption_facts(pairs),
        "splits": split_facts(pairs),
        "types": type_facts(pairs),
    }
    most_words = params.prepare.words - MARKS
    with atomic_folder(data / "validate") as fresh:
        findings = judge(tables, rules(most_words, params.validate_.rarest_change), fresh / "docs")
        summary = _summary(findings)
        write_json(fresh / "report.json", summary)
    broken = [finding for finding in findings if not finding.success]
    for finding in broken:
        report.note(f"{finding.rule.severity}: {finding}")
    report.metrics({name: float(summary[name]) for name in ("critical", "warnings")})
    report.picture("captions.png", _draw(tables["captions"], tables["pairs"], most_words))
    critical = [finding for finding in broken if finding.rule.severity == "critical"]
    if critical:
        raise BadInput(
            "the corpus cannot be trained on:" + "".join(f"\n    {finding}" for finding in critical),
            where=str(data / "prepare" / "pairs.parquet"),
            expected="no broken critical rule",
            do=f"mend the corpus and run `dvc repro` again; all rules: {data / 'validate' / 'docs' / 'index.html'}",
        )


def _summary(findings: list[Finding]) -> dict[str, Any]:
    broken = [finding.rule.severity for finding in findings if not finding.success]
    return {
        "critical": broken.count("critical"),
        "warnings": broken.count("warning"),
        "rules": {
            f"{finding.rule.table}.{finding.rule.name}": {
                "says": finding.rule.says,
                "severity": finding.rule.severity,
                "success": finding.success,
                "checked": finding.checked,
                "unexpected": finding.unexpected,
                "ids": finding.ids,
            }
            for finding in findings
        },
    }


def _draw(captions: Any, pairs: Any, most_words: int) -> Any:
    """Words per caption, and pairs per change type and split."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    longest = max([most_words, *captions["words"]])
    left.hist(captions["words"], bins=np.arange(longest + 2) - 0.5)
    left.axvline(most_words + 0.5, color="black", linestyle=":")
    left.set(xlabel="words", ylabel="captions", title="length (dotted: longest that fits)")
    kinds = sorted(set(pairs["change_type"]))
    bottom = np.zeros(len(kinds), int)
    for split in (*SPLITS, *({SHIFT} & set(pairs["split"]))):
        counts = np.array([((pairs["change_type"] == kind) & (pairs["split"] == split)).sum() for kind in kinds])
        right.bar(kinds, counts, bottom=bottom, label=split)
        bottom = bottom + counts
    right.set(ylabel="pairs", title="change types")
    right.legend()
    return figure
