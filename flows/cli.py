"""The ``procap`` command. Everything heavy is imported inside the commands, so that ``--help`` answers at once."""

import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from procap.datasets.corpora import CORPORA
from procap.datasets.corpus import Corpus
from procap.datasets.table import COLUMNS, EXAMPLE
from procap.errors import BadInput, refusal


class OnError(StrEnum):
    """What a pair that cannot be used does."""

    stop = "stop"
    skip = "skip"


Kind = Literal["vqgan", "stage1", "stage2", "vfiformer", "rife"]
"""Weights that can be imported."""

SHEET_FRAMES = 3
"""Of the true procedure, on the sheet of `procap render`."""

app = typer.Typer(
    name="procap",
    help="Image change captioning: two similar images in, one sentence out that says what changed, and how.\n\n"
    "Run it in the project's folder, where params.yaml and dvc.yaml are.",
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
config_app = typer.Typer(help="Look at params.yaml.", no_args_is_help=True)
app.add_typer(config_app, name="config")
import_app = typer.Typer(
    help="Make a corpus on disk, published or your own, the input of the pipeline.\n\n"
    "`procap import table --help` says how your own pairs have to look.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(import_app, name="import")


def _bundles(begun: str) -> list[str]:
    """For the shell's completion: what is trained here, and how a registered model is called."""
    found = sorted(path.parent.as_posix() for path in Path().glob("data/caption/*/bundle/manifest.json"))
    return [name for name in (*found, "models:/procap@champion", "models:/procap@challenger") if name.startswith(begun)]


@app.command(epilog="Examples:  procap repro  |  procap repro caption  |  procap repro caption@static --force")
def repro(
    targets: Annotated[list[str] | None, typer.Argument(help="Steps or stages; all, if none is named.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Run them even if nothing changed.")] = False,
) -> None:
    """Bring the pipeline up to date: `dvc repro`, after a look at params.yaml.

    Files that params.yaml names, checkpoints for example, become dependencies of their stages in dvc.yaml.
    """
    from flows import locks
    from flows.watching import watch
    from procap.config import load_params

    watch(Path.cwd(), load_params(Path("params.yaml")).model_dump(by_alias=True))
    if found := locks.clear(Path.cwd()):
        typer.echo(f"DVC's locks cleared: {found}")
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    words = [sys.executable, "-m", "dvc", "repro", *(["--force"] if force else []), *(targets or [])]
    sys.stdout.flush()
    os.execv(sys.executable, words)


@app.command(epilog="Examples:  procap preset list  |  procap preset smoke")
def preset(name: Annotated[str, typer.Argument(help="A preset, or 'list'.")]) -> None:
    """Write a preset into params.yaml; comments and all other values stay."""
    from flows.presets import apply_preset, describe_preset, preset_names

    root = Path.cwd()
    if name == "list":
        for known in preset_names(root):
            typer.echo(f"{known:20} {describe_preset(root, known)}")
        return
    changed = apply_preset(root, name)
    typer.echo(f"params.yaml: changed {', '.join(changed)}" if changed else "params.yaml: nothing to change")


@config_app.command("check")
def config_check() -> None:
    """Check params.yaml: nothing unknown, nothing missing, all values allowed."""
    from procap.config import load_params

    load_params(Path("params.yaml"))
    typer.echo("params.yaml is valid")


@config_app.command("show", epilog="Examples:  procap config show  |  procap config show caption")
def config_show(section: Annotated[str | None, typer.Argument(help="One section only.")] = None) -> None:
    """Print the parameters as they are read, without comments."""
    from ruamel.yaml import YAML

    from procap.config import load_params

    values: Any = load_params(Path("params.yaml")).model_dump(mode="json", by_alias=True)
    if section is not None and section not in values:
        known = ", ".join(values)
        raise BadInput(
            f"no section '{section}'", where="params.yaml", expected=f"one of {known}", do="name one of them"
        )
    yaml = YAML()
    yaml.default_flow_style = False
    yaml.dump(values if section is None else {section: values[section]}, sys.stdout)


@app.command(epilog="Examples:  procap doctor  |  procap doctor --fix  |  procap doctor --json")
def doctor(
    fix: Annotated[bool, typer.Option("--fix", help="Close runs, locks and leftovers whose process is gone.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="For programs: a list of findings.")] = False,
) -> None:
    """Look at everything the pipeline leans on, and say what to do about what is not well.

    Packages, Java, GPU, git, disk, DVC's locks and remotes, both servers, runs without a process, leftovers.
    Exit status: 0, nothing will fail; 1, something will.
    """
    import json
    from dataclasses import asdict

    from flows.doctor import examine

    findings = []
    for finding in examine(Path.cwd(), fix):
        findings.append(finding)
        if not as_json:
            do = f"\n     {'':18} -> {finding.do}" if finding.do and not finding.well else ""
            typer.echo(f"{'ok  ' if finding.well else 'LOOK'} {finding.what:18} {finding.seen}{do}")
    if as_json:
        typer.echo(json.dumps([asdict(finding) for finding in findings], indent=2))
    if not all(finding.well or not finding.needed for finding in findings):
        sys.exit(1)


@app.command(epilog="Example:  dvc repro && git add dvc.lock data && git commit -m 'Rebuild' && procap finalize")
def finalize() -> None:
    """After a commit of dvc.lock: tag the runs that made it with the commit and with what came out."""
    from flows.upkeep import finalize as tag_runs

    for stage, run in tag_runs(Path.cwd()):
        typer.echo(f"{stage:20} {run or 'no run here (restored from a cache, or another store)'}")


@app.command(
    epilog="Examples:  procap caption before.png after.png --explain why.html  |  "
    "procap caption a.png b.png --model models:/procap@champion --json  |  "
    "procap caption --table pairs.csv --out captions.jsonl"
)
def caption(
    before: Annotated[Path | None, typer.Argument(help="The earlier picture.")] = None,
    after: Annotated[
        Path | None, typer.Argument(help="The later one, of the same size; both are resized as in training.")
    ] = None,
    table: Annotated[
        Path | None,
        typer.Option(help="Instead: .csv, .tsv, .jsonl or .parquet with the columns before and after, paths from it."),
    ] = None,
    model: Annotated[
        str,
        typer.Option(
            help="A bundle's folder, models:/<name>@<alias>, models:/<name>/<version> or runs:/<run>/<model>.",
            autocompletion=_bundles,
        ),
    ] = "data/caption/procap/bundle",
    explain: Annotated[
        Path | None, typer.Option(help="Write why: out.html, or out.gif of what the model imagines.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Everything, words' probabilities too.")] = False,
    out: Annotated[
        Path | None, typer.Option(help="With --table: the file for the lines; an earlier one is continued.")
    ] = None,
    beams: Annotated[int, typer.Option(min=1, max=16, help="1: greedy.")] = 1,
    batch: Annotated[int, typer.Option(min=1, help="With --table: pairs at once.")] = 16,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
) -> None:
    """Say what changed between two pictures, or in each pair of a table.

    A table gives a JSON line per row; a row that cannot be captioned has an error in its line, is named on stderr, and
    does not stop the others. Exit status: 0, all is well; 1, some rows could not be captioned; 2, nothing was done.
    """
    from flows.captions import caption_pair, caption_table

    if table is not None:
        if before or after or explain or as_json:
            raise _unclear("pictures, --explain and --json do not go with --table", "procap caption --table")
        bad = caption_table(table, model, device, beams, batch, out, lambda text: typer.echo(text, err=True))
        if bad:
            typer.echo(f"procap: {bad} rows could not be captioned", err=True)
            sys.exit(1)
        return
    if before is None or after is None or out:
        raise _unclear("two pictures make a pair; --out goes with --table", "procap caption")
    caption_pair(before, after, model, device, beams, as_json, explain)


def _unclear(what: str, where: str) -> BadInput:
    return BadInput(what, where=where, expected="two pictures, or --table", do="see `procap caption --help`")


@app.command(epilog="Examples:  procap show models:/procap@champion  |  procap show data/caption/static/bundle")
def show(
    what: Annotated[
        str,
        typer.Argument(
            help="A bundle's folder, models:/<name>@<alias>, models:/<name>/<version>, or an MLflow run.",
            autocompletion=_bundles,
        ),
    ],
) -> None:
    """Say what a model or a run is: sizes, where it came from, scores, examples."""
    from rich.console import Console

    from flows.show import describe

    for part in describe(what, Path.cwd()):
        Console().print(part)


@app.command(
    epilog="Example:  procap evaluate data/caption/procap/bundle /data/other/prepare --out elsewhere"
)
def evaluate(
    bundle: Annotated[Path, typer.Argument(help="Folder of a trained captioner.")],
    prepared: Annotated[Path, typer.Argument(help="Folder that the step prepare wrote; its test split is opened.")],
    out: Annotated[Path, typer.Option(help="Where to write; new, or an earlier evaluation.")] = Path("evaluation"),
) -> None:
    """Score a trained captioner on the test split of another corpus."""
    from rich.console import Console

    from flows.console import Terminal
    from flows.results import read_folder, scores_table
    from procap.config import load_params
    from procap.steps.evaluate import evaluate_bundle

    if out.exists() and not (out / "metrics.json").exists():
        raise BadInput("something else is there", where=str(out), expected="a new folder", do="name another")
    params = load_params(Path("params.yaml"))
    evaluate_bundle(params, bundle, prepared, out, corpus=str(prepared), report=Terminal("evaluate"))
    Console().print(scores_table({bundle.name: read_folder(out)}))
    typer.echo(f"written: {out}")


@app.command(
    "validate", epilog="Examples:  procap validate /data/LEVIR-MCI --out findings  |  procap validate data/prepare"
)
def validate_command(
    folder: Annotated[Path, typer.Argument(help="A corpus as published, as imported, or as prepare writes it.")],
    corpus: Annotated[str | None, typer.Option(help="Which one it is; told by its files if not given.")] = None,
    splits: Annotated[str | None, typer.Option(help="Draw splits with these shares, as 0.8,0.1,0.1.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write card.html, findings.csv, report.json, docs/ there.")] = None,
) -> None:
    """Hold a corpus against its rules, without the pipeline; thresholds are those of params.yaml.

    Exit status: 0, no critical rule is broken (warnings may be); 1, one is; 2, the folder has no corpus to be read.
    """
    import tempfile

    from rich.console import Console

    from flows.console import Terminal
    from flows.results import findings_table
    from procap.config import load_params
    from procap.files import atomic_folder
    from procap.steps.validate_folder import validate_folder

    known = [*CORPORA, "rendered"]
    if corpus is not None and corpus not in known:
        raise BadInput(
            f"no corpus '{corpus}'", where="--corpus", expected=f"one of {', '.join(known)}", do="name one of them"
        )
    if out is not None and out.exists() and not (out / "report.json").exists():
        raise BadInput("something else is there", where=str(out), expected="a new folder", do="name another")
    params, shares = load_params(Path("params.yaml")), _shares(splits) if splits else None
    with tempfile.TemporaryDirectory() as temporary, atomic_folder(out or Path(temporary) / "validate") as fresh:
        done = validate_folder(params, folder, fresh, corpus=corpus, shares=shares, report=Terminal("validate"))
    for reason, count in done.left_out.items():
        typer.echo(f"left out: {count} {reason}")
    for warning in done.warnings:
        typer.echo(f"LOOK: {warning}")
    broken = [each for each in done.findings if not each.success]
    if broken:
        Console().print(findings_table(broken))
    typer.echo(f"{done.corpus}: {len(done.findings) - len(broken)} of {len(done.findings)} rules hold")
    if out is not None:
        typer.echo(f"written: {out / 'card.html'}, and beside it findings.csv, report.json and docs/")
    if any(each.rule.severity == "critical" for each in broken):
        sys.exit(1)


@app.command()
def metrics() -> None:
    """Print the test scores of every captioner and what is registered."""
    from rich.console import Console

    from flows.results import read_scores, read_versions, scores_table, skipped_metrics, versions_table

    root, console = Path.cwd(), Console()
    scores = read_scores(root)
    if not scores:
        raise BadInput(
            "nothing was evaluated yet",
            where="data/evaluate",
            expected="<captioner>/metrics.json",
            do="run `dvc repro`",
        )
    console.print(scores_table(scores))
    for name, why in skipped_metrics(root).items():
        console.print(f"{name} left out: {why}", style="dim", markup=False)
    if versions := read_versions(root):
        console.print(versions_table(versions))


@app.command(
    epilog="Examples:  procap promote --dry-run  |  procap promote --from 3 --metric change_accuracy --margin -0.01"
)
def promote(
    source: Annotated[str, typer.Option("--from", help="The version: an alias or a number.")] = "challenger",
    metric: Annotated[str, typer.Option(help="CIDEr, ROUGE-L, SPICE, change_accuracy, ...")] = "CIDEr",
    margin: Annotated[float, typer.Option(help="The 95 % interval of the gain has to lie above it.")] = 0.0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would happen; move nothing.")] = False,
    model: Annotated[str | None, typer.Option(help="Registered model; register.name of params.yaml.")] = None,
) -> None:
    """Make a registered version the champion, if it is shown to be better and everything else is in order.

    Exit status: 0, it serves (or would); 1, a condition does not hold; 2, there is nothing to judge.
    """
    from flows.promotion import promote as judge_and_move

    name = model or _registered_name()
    done = judge_and_move(Path.cwd(), name, source=source, metric=metric, margin=margin, dry_run=dry_run)
    _show_decision(done, "would serve now" if dry_run else "serves now")


@app.command(epilog="Example:  procap rollback")
def rollback(
    model: Annotated[str | None, typer.Option(help="Registered model; register.name of params.yaml.")] = None,
) -> None:
    """Let the previous champion serve again; a second rollback undoes the first."""
    from flows.promotion import rollback as go_back

    _show_decision(go_back(Path.cwd(), model or _registered_name()), "serves again")


@app.command(
    epilog="Examples:  procap lineage models:/procap@champion  |  procap lineage models:/procap/3 --verify"
)
def lineage(
    model: Annotated[str, typer.Argument(help="models:/<name>@<alias> or models:/<name>/<version>.")],
    verify: Annotated[bool, typer.Option("--verify", help="Make it again in a worktree and compare bytes.")] = False,
    scratch: Annotated[
        bool, typer.Option("--scratch", help="With --verify: compute everything, take nothing from DVC's cache.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Say where a registered model comes from: commit, parameters, data, versions, and how to make it again.

    Exit status with --verify: 0, every output has the bytes on record; 1, some have not.
    """
    import json
    from dataclasses import asdict

    from flows import origin

    found = origin.origin(Path.cwd(), model)
    same = origin.verify(Path.cwd(), found, scratch=scratch, say=_aside) if verify else []
    if as_json:
        told: dict[str, Any] = {"name": found.name, "version": found.version, "commit": found.commit, **found.facts}
        told |= {"again": origin.commands(found)}
        typer.echo(json.dumps(told | ({"verified": [asdict(one) for one in same]} if verify else {}), indent=2))
    else:
        for line in origin.lines(found) if not verify else ():
            typer.echo(line)
        for one in same:
            differs = "" if one.holds else f", not {one.recorded}"
            typer.echo(f"{'same' if one.holds else 'DIFFERS'}  {one.made:36}  {one.path}{differs}")
    if verify and not all(one.holds for one in same):
        sys.exit(1)


def _aside(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _registered_name() -> str:
    from procap.config import load_params

    return load_params(Path("params.yaml")).register_.name


def _show_decision(done: Any, moved: str) -> None:
    for gate in done.verdict.gates:
        typer.echo(f"{'ok  ' if gate.passed else 'NO  '} {gate.name:12} {gate.seen}")
    if not done.verdict.promoted:
        serves = f"version {done.before.champion} serves as before" if done.before.champion else "nobody serves"
        typer.echo(f"not promoted: {serves}", err=True)
        sys.exit(1)
    typer.echo(f"models:/{done.model}@champion: version {done.wanted} {moved}")


@app.command(
    epilog="Examples:  procap ablate components --seeds 3 --jobs 2  |  procap ablate k --preset smoke --rows 'k 1,k 2'"
)
def ablate(
    table: Annotated[str, typer.Argument(help="A table of infra/ablations.yaml, or 'list'.")],
    seeds: Annotated[int, typer.Option(min=1, max=1000, help="Trainings per row, on the same data.")] = 1,
    jobs: Annotated[int, typer.Option(min=1, help="Rows at work at once.")] = 1,
    preset: Annotated[str | None, typer.Option(help="A preset under all rows.")] = None,
    values: Annotated[list[str] | None, typer.Option("--set", help="key=value under all rows; repeatable.")] = None,
    rows: Annotated[str, typer.Option(help="Only these rows, between commas.")] = "",
) -> None:
    """Run a table of ablations, each row in its own worktree; what is finished is not run again."""
    import signal

    from flows.tables import read_table, table_names

    root = Path.cwd()
    if table == "list":
        for name in table_names(root):
            typer.echo(f"{name:16} {read_table(root, name).about}")
        return
    from flows.ablation import ablate as run_table

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    wanted = [row.strip() for row in rows.split(",") if row.strip()]
    try:
        outcome = run_table(
            root, table, seeds=seeds, slots=jobs, preset=preset, overrides=_assignments(values or []), rows=wanted,
            say=lambda text: print(text, flush=True),
        )  # fmt: skip
    except KeyboardInterrupt:
        typer.echo("stopped; the same command continues")
        sys.exit(130)
    if outcome.finished or outcome.earlier:
        _compared(root, table, None)
    if outcome.failed:
        typer.echo(f"failed: {', '.join(outcome.failed)}", err=True)
        sys.exit(1)


@app.command(
    epilog="Examples:  procap compare --table components  |  procap compare data/evaluate/static data/evaluate/procap"
)
def compare(
    results: Annotated[list[Path] | None, typer.Argument(help="Folders data/evaluate/<captioner>.")] = None,
    table: Annotated[str | None, typer.Option(help="Instead: a table that was run.")] = None,
    base: Annotated[str | None, typer.Option(help="What the others are compared with; the first.")] = None,
    out: Annotated[Path, typer.Option(help="Where to write, without --table.")] = Path(".procap/comparison"),
) -> None:
    """Compare captioners on the same test pairs, with intervals: a page, Markdown and CSV."""
    from flows.comparison import compare_paths

    if (table is None) == (not results):
        raise BadInput(
            "nothing, or two things, to compare",
            where="procap compare",
            expected="results, or --table",
            do="give one of them",
        )
    if table is not None:
        _compared(Path.cwd(), table, base)
    else:
        _show_comparison(compare_paths(results or [], out, base))


def _compared(root: Path, table: str, base: str | None) -> None:
    from flows.comparison import compare_table

    _show_comparison(compare_table(root, table, base))


def _show_comparison(written: Any) -> None:
    from rich.console import Console

    from flows.results import comparison_table

    Console().print(comparison_table(written.comparison, written.base))
    if written.missing:
        typer.echo(f"missing: {', '.join(written.missing)}")
    typer.echo(f"written: {written.page}, and .md and .csv beside it")


def _assignments(words: list[str]) -> dict[str, Any]:
    """``["caption.steps=10"]`` as ``{"caption.steps": 10}``; values are YAML."""
    from ruamel.yaml import YAML, YAMLError

    found = {}
    for word in words:
        key, sign, value = word.partition("=")
        try:
            found[key.strip()] = YAML(typ="safe").load(value)
        except YAMLError:
            sign = ""
        if not sign or not key.strip():
            raise BadInput(f"'{word}' sets nothing", where="--set", expected="key=value", do="mend it")
    return found


@app.command(epilog="Examples:  procap up  |  procap up --mlflow-port 5001 --worker")
def up(
    mlflow_port: Annotated[int, typer.Option(min=1, max=65535, help="Port of the MLflow server.")] = 5000,
    prefect_port: Annotated[int, typer.Option(min=1, max=65535, help="Port of the Prefect server.")] = 4200,
    with_worker: Annotated[bool, typer.Option("--worker", help="Also deploy the pipeline and start a worker.")] = False,
) -> None:
    """Start MLflow and Prefect on this machine, for this machine only, until Ctrl-C."""
    import signal
    from contextlib import nullcontext

    from flows.deployment import worker
    from flows.servers import mlflow_server, prefect_server, prepare_store, running, watch
    from flows.store import show_uri

    root, logs = Path.cwd(), Path.cwd() / ".procap" / "logs"
    if not (root / "dvc.yaml").exists():
        raise BadInput("no pipeline is here", where=str(root), expected="dvc.yaml", do="run from the project's folder")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if mlflow_port == prefect_port:
        raise BadInput(
            "both servers have one port", where=f"--mlflow-port, --prefect-port {prefect_port}",
            expected="two ports", do="choose another for one of them",
        )  # fmt: skip
    if (known := os.environ.get("MLFLOW_TRACKING_URI", "")).startswith("http"):
        raise BadInput(
            "MLflow runs somewhere already", where=f"MLFLOW_TRACKING_URI={show_uri(known)}", expected="none",
            do="use that one, or unset the variable to start one here",
        )  # fmt: skip
    prepare_store(root)
    servers = [mlflow_server(root, mlflow_port), prefect_server(root, prefect_port)]
    addresses = {"MLFLOW_TRACKING_URI": servers[0].address, "PREFECT_API_URL": f"{servers[1].address}/api"}
    typer.echo("starting MLflow and Prefect ...")
    try:
        with running(servers, logs) as processes, worker(root, addresses) if with_worker else nullcontext():
            typer.echo(f"MLflow   {servers[0].address}\nPrefect  {servers[1].address}\n\nin another shell:")
            for name, value in addresses.items():
                typer.echo(f"  export {name}={value}")
            typer.echo("\nCtrl-C stops everything.")
            sys.stdout.flush()
            watch(servers, processes, logs)
    except KeyboardInterrupt:
        typer.echo("stopped")


@app.command(
    epilog="Examples:  procap serve  |  procap serve --model data/caption/procap/bundle --port 8080  |  "
    "PROCAP_TOKEN=... procap serve --host 0.0.0.0"
)
def serve(
    model: Annotated[
        str, typer.Option(help="A bundle's folder, or models:/<name>@<alias>, whose newest model is followed.")
    ] = "models:/procap@champion",
    host: Annotated[
        str, typer.Option(help="Where to listen; others than loopback need the environment variable PROCAP_TOKEN.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free.")] = 8000,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    batch: Annotated[int, typer.Option(min=1, max=256, help="Pairs that go through the model together.")] = 16,
    patience: Annotated[
        float, typer.Option(min=0, max=1000, help="Milliseconds to wait for more pairs before a batch starts.")
    ] = 4.0,
    every: Annotated[float, typer.Option(min=0.1, help="Seconds between looks at the alias.")] = 10.0,
    max_megabytes: Annotated[int, typer.Option(min=1, max=1000, help="Of one request.")] = 32,
    max_megapixels: Annotated[int, typer.Option(min=1, max=40, help="Of one picture.")] = 16,
    max_pairs: Annotated[int, typer.Option(min=1, max=1000, help="Of one request.")] = 32,
    queue: Annotated[int, typer.Option(min=1, help="Pairs that may wait; more are asked to come again (429).")] = 128,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds after which an answer is given up (504).")] = 30.0,
    log: Annotated[Literal["debug", "info", "warning", "error"], typer.Option(help="Least level, on stderr.")] = "info",
) -> None:
    """Caption pairs over HTTP, and show a page for it, until Ctrl-C.

    The page is at /, what can be asked in /openapi.json, whether all is well in /healthz and /readyz, numbers for
    Prometheus in /metrics. With curl: curl -F before=@before.png -F after=@after.png http://127.0.0.1:8000/v1/caption

    A model that gets the alias takes over within seconds, and no request is dropped. docs/serving.md says more.
    """
    import signal

    from flows.serving.limits import Limits
    from flows.serving.serve import Settings
    from flows.serving.serve import serve as run

    if queue < max_pairs:
        raise BadInput(
            "a whole request would not fit in the queue",
            where=f"--queue {queue}",
            expected=f"at least --max-pairs, {max_pairs}",
            do="raise the one or lower the other",
        )
    limits = Limits(
        body=max_megabytes * 10**6, pixels=max_megapixels * 10**6, pairs=max_pairs, queue=queue, answer=timeout
    )
    settings = Settings(model, host, port, device, batch, patience / 1000, every, log, limits)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        run(Path.cwd(), settings, typer.echo)
    except KeyboardInterrupt:
        typer.echo("ended")


@app.command("deploy", epilog="Example:  PREFECT_API_URL=http://127.0.0.1:4200/api procap deploy")
def deploy_command() -> None:
    """Tell a running Prefect server of the pipeline: work pool, GPU slots, deployment."""
    from flows.deployment import POOL, deploy

    deploy(Path.cwd())
    typer.echo(f"start a worker:  prefect worker start --pool {POOL}")
    typer.echo("run it:          prefect deployment run procap/pipeline")


@app.command(
    epilog="Examples:  procap render /tmp/scenes --count 20  |  procap render --sheet sheet.png --width 120 --height 80"
)
def render(
    folder: Annotated[Path | None, typer.Argument(help="Where to write; must be new or empty.")] = None,
    count: Annotated[
        int | None, typer.Option(min=1, help="Scenes; as in params.yaml if not given, 4 on a sheet.")
    ] = None,
    width: Annotated[int | None, typer.Option(min=16, max=480, help="Pixels; else prepare.image_size.")] = None,
    height: Annotated[int | None, typer.Option(min=16, max=320, help="Pixels; else prepare.image_size.")] = None,
    sheet: Annotated[Path | None, typer.Option(help="A PNG file with some scenes and their true procedure.")] = None,
) -> None:
    """Write the rendered scenes as PNG files in CLEVR-Change's layout, with masks and descriptions."""
    from dataclasses import replace

    from flows.console import Terminal
    from procap.config import load_params
    from procap.datasets.contact_sheet import contact_sheet
    from procap.datasets.rendered import write_official_layout
    from procap.steps.prepare import corpus_settings

    params = load_params(Path("params.yaml"))
    side = params.prepare.image_size
    settings = replace(corpus_settings(params), size=(height or side, width or side))
    if folder is None and sheet is None:
        raise BadInput("nowhere to write", where="procap render", expected="a folder or --sheet", do="name one")
    if folder is not None:
        _refuse_used(folder)
        write_official_layout(folder, replace(settings, count=count or settings.count), Terminal("render"))
        typer.echo(f"written: {folder}")
    if sheet is not None:
        contact_sheet(replace(settings, truth=SHEET_FRAMES), count or 4).save(sheet, "PNG", optimize=True)
        typer.echo(f"written: {sheet}")


@app.command("export-frames", epilog="Example:  dvc repro interpolate && procap export-frames /tmp/frames")
def export_frames(
    folder: Annotated[Path, typer.Argument(help="Where to write; must be new or empty.")],
) -> None:
    """Write the frames of data/interpolate as ProCap releases them: HDF5, before and after included."""
    from procap.config import load_params
    from procap.datasets.pairs import Pairs
    from procap.datasets.pseudo_sequences import write_pseudo_sequences
    from procap.datasets.shards import Shards

    _refuse_used(folder)
    corpus = load_params(Path("params.yaml")).dataset.name
    pairs = Pairs.read(Path("data/prepare")).split("train", "val")
    frames = Shards(Path("data/interpolate/frames"), "frames")
    names = write_pseudo_sequences(folder, pairs, frames, corpus)
    typer.echo(f"written: {', '.join(str(folder / name) for name in names)} ({len(pairs)} pairs of train and val)")


def _refuse_used(folder: Path) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadInput("something is there", where=str(folder), expected="a new or empty folder", do="name another")


@app.command(
    "import-weights",
    epilog="Examples:  procap import-weights model.chkpt --kind stage2 --vocabulary clevr_word2idx.json  |  "
    "procap import-weights dalle.pt --kind stage1  |  procap import-weights 'clevr_epoch=000035.ckpt' --kind vqgan",
)
def import_weights(
    file: Annotated[Path, typer.Argument(help="A checkpoint of others: .ckpt, .pt, .chkpt, .pkl or .safetensors.")],
    kind: Annotated[
        Kind,
        typer.Option(
            help="vqgan: the image tokenizer of taming-transformers; stage1: ProCap's pre-trained encoder (dalle.pt); "
            "stage2: ProCap's captioner (model.chkpt); vfiformer, rife: frame interpolation."
        ),
    ],
    vocabulary: Annotated[
        Path | None, typer.Option(help="For stage2: the release's JSON file {word: number}.")
    ] = None,
    vqgan: Annotated[
        Path | None, typer.Option(help="For stage1 and stage2: a VQGAN to take instead of the one in the file.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder to write, new or empty; data/imported/<kind> if not given.")
    ] = None,
) -> None:
    """Turn weights of others into a folder that this program takes, after a look at every key.

    Nothing in the file is run: tensors are read, everything else is passed over. Sizes follow from the tensors.
    Keys that are missing, unknown or of another shape are named, and then nothing is written.

    stage2 gives a bundle that captions as the reference code does; stage1 an encoder that the step pretrain takes
    instead of training; the others what the steps tokenizer and interpolate take. The last line printed says how.
    """
    from flows import weights

    out = out or Path("data/imported") / kind
    _refuse_used(out)
    typer.echo(f"written: {out}\nnext:    {weights.import_weights(file, kind, out, vocabulary, vqgan)}")


@app.command(
    "export-weights",
    epilog="Examples:  procap export-weights data/caption/procap/bundle model.chkpt  |  "
    "procap export-weights data/pretrain dalle.pt --vqgan data/tokenizer",
)
def export_weights(
    folder: Annotated[Path, typer.Argument(help="A bundle of procap (stage 2), or a folder of stage 1.")],
    file: Annotated[Path, typer.Argument(help="Where to write; must be new.")],
    vqgan: Annotated[
        Path | None, typer.Option(help="For stage 1: the folder with the VQGAN, where the encoder's has none.")
    ] = None,
) -> None:
    """Write a model as the reference code keeps it, under its names, to be read there.

    Only models that the reference code can compute: a reference preset, or imported ones. What the reference code
    has and never reads is zero; LPIPS, the discriminator and the optimiser's state are left out.
    """
    from flows import weights

    if file.exists():
        raise BadInput("something is there", where=str(file), expected="a new file", do="name another")
    typer.echo(f"written: {file}, {weights.export_weights(folder, file, vqgan)} of the reference code")


def _add_import(corpus: Corpus) -> None:
    """``procap import <corpus>``: the corpora differ in layout only."""

    @import_app.command(corpus.name, short_help=corpus.title, help=_import_help(corpus))
    def import_corpus(
        folder: Annotated[Path, typer.Argument(help="Where the corpus is.")],
        limit: Annotated[int | None, typer.Option(min=3, help="Only so many pairs, from all splits.")] = None,
        link: Annotated[
            bool, typer.Option("--link/--copy", help="Link to the files, of which DVC then keeps no copy either.")
        ] = False,
        splits: Annotated[
            str | None, typer.Option(help="Draw splits with these shares of train, val and test, as 0.8,0.1,0.1.")
        ] = None,
        on_error: Annotated[
            OnError, typer.Option(help="At a pair that cannot be used: stop, or leave it out and count it.")
        ] = OnError.stop,
    ) -> None:
        from flows.console import Terminal
        from flows.importing import import_corpus

        root = Path.cwd()
        done = import_corpus(
            root,
            corpus.name,
            folder,
            limit=limit,
            shares=_shares(splits) if splits else None,
            skip=on_error is OnError.skip,
            link=link,
            report=Terminal("import"),
        )
        typer.echo(f"data/raw/{corpus.name}: " + ", ".join(f"{count} {split}" for split, count in done.counts.items()))
        for reason, count in done.left_out.items():
            typer.echo(f"left out: {count} {reason}")
        for warning in done.warnings:
            typer.echo(f"LOOK: {warning}")
        typer.echo(f"params.yaml: dataset.name is {corpus.name}; `procap repro` trains on it")


def _import_help(corpus: Corpus) -> str:
    """The tree, and for a table what its columns mean; \\b keeps lines as they are."""
    parts = [f"{corpus.title}.", f"\b\nExpected in FOLDER:\n{corpus.tree.rstrip()}"]
    if corpus.own:
        columns = "\n".join(f"{name:13}{means}" for name, means in COLUMNS.items())
        parts.append(f"\b\nColumns, of which before, after and caption are needed:\n{columns}")
        parts.append(f"\b\nExample:\n{EXAMPLE.rstrip()}")
        parts.append(
            "Splits are drawn 8 : 1 : 1 by the seed in params.yaml; pairs that share a picture, under any name, stay "
            "together. Without a change type the captions tell whether anything changed."
        )
    return "\n\n".join(parts)


def _shares(text: str) -> list[float]:
    try:
        shares = [float(part) for part in text.split(",")]
    except ValueError:
        shares = []
    if len(shares) != 3 or min(shares, default=-1) < 0 or abs(sum(shares) - 1) > 1e-6:
        raise BadInput(
            f"'{text}' are no shares", where="--splits", expected="three numbers that sum to 1", do="try 0.8,0.1,0.1"
        )
    return shares


for _corpus in CORPORA.values():
    _add_import(_corpus)


def main() -> None:
    """The entry point: bad input is said without a traceback, and the exit status is 2."""
    try:
        app()
    except BadInput as complaint:
        typer.echo(f"procap: {complaint}", err=True)
        sys.exit(2)
    except OSError as error:  # a full disk, no permission, a file where a folder should be
        if (told := refusal(error)) is None:
            raise
        typer.echo(f"procap: {told}", err=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
