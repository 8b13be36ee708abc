"""Step ``validate``: nothing is trained on a corpus that breaks its own rules."""

import csv
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from procap.config import Params
from procap.datasets.pairs import SHIFT, SPLITS, Pairs
from procap.datasets.vocabulary import MARKS
from procap.errors import BadInput
from procap.evaluation.data_card import card
from procap.evaluation.quality import Finding, all_facts, judge
from procap.evaluation.rules import Thresholds, rules
from procap.files import atomic_folder, write_json, write_text
from procap.report import Report, silent


def run(params: Params, data: Path, *, report: Report = silent) -> None:
    """Write ``data/validate``: report.json, findings.csv with every offending row, card.html and docs/.

    Raises BadInput, after all are written, where a critical rule is broken.
    """
    name, prepared, target = params.dataset.name, data / "prepare", data / "validate"
    cleaned = left_out(data / "raw" / name, prepared)
    with atomic_folder(target) as fresh:
        findings = examine(params, name, prepared, fresh, cleaned, report=report)
    for written in ("card.html", "findings.csv", "docs"):
        report.artifact(target / written)
    critical = [each for each in findings if not each.success and each.rule.severity == "critical"]
    if critical:
        raise BadInput(
            "the corpus cannot be trained on:" + "".join(f"\n    {finding}" for finding in critical),
            where=str(prepared / "pairs.parquet"),
            expected="no broken critical rule",
            do=f"mend the corpus and run `dvc repro` again; all that is wrong: {target / 'card.html'}",
        )


def examine(
    params: Params, corpus: str, prepared: Path, target: Path, cleaned: Mapping[str, int], *, report: Report = silent
) -> list[Finding]:
    """Hold a prepared corpus against its rules and write to ``target`` what came out; ``cleaned`` is for the card."""
    section = params.validate_
    limits = Thresholds(
        most_words=params.prepare.words - MARKS,
        rarest_change=section.rarest_change,
        duplicate_bits=section.duplicate_bits,
        duplicate_difference=section.duplicate_difference,
        drift=section.drift,
        largest_mask=section.largest_mask,
    )
    pairs = Pairs.read(prepared)
    tables = all_facts(pairs, limits)
    findings = judge(tables, rules(corpus, limits), target / "docs")
    broken = [finding for finding in findings if not finding.success]
    summary = _summary(findings)
    write_json(target / "report.json", summary)
    write_text(target / "findings.csv", _listed(broken))
    write_text(target / "card.html", card(corpus, pairs, tables, findings, cleaned))
    for finding in broken:
        report.note(f"{finding.rule.severity}: {finding}")
    report.metrics({name: float(summary[name]) for name in ("critical", "warnings")})
    report.picture("captions.png", _draw(tables["captions"], tables["pairs"], limits.most_words))
    return findings


def left_out(raw: Path, prepared: Path) -> dict[str, int]:
    """Sentences and pairs by the reason for which ``procap import`` and ``prepare`` did without them."""
    imported, summary = raw / "import.json", prepared / "summary.json"
    found = dict(json.loads(imported.read_text(encoding="utf-8"))["left_out"]) if imported.exists() else {}
    aside = json.loads(summary.read_text(encoding="utf-8"))["set_aside"] if summary.exists() else 0
    return found | ({"pairs set aside (dataset.on_error: skip)": aside} if aside else {})


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


def _listed(broken: list[Finding]) -> str:
    """CSV with a line per rule and offending id."""
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(["severity", "rule", "id", "detail"])
    for finding in broken:
        rule = finding.rule
        lines.writerows([rule.severity, f"{rule.table}.{rule.name}", *each] for each in finding.offenders.items())
    return text.getvalue()


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
