"""The service under load: ``python -m tests.benchmarks.load``, after ``dvc repro``.

Some clients ask for captions, each as soon as it has its last answer: one pair at a time through the model, then in
micro-batches, then in micro-batches while the alias moves to another model. Ratios count; a request that fails, or
memory that grows, ends it with exit status 1.
"""

import argparse
import contextlib
import http.client
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "flows" / "serving" / "page" / "examples"
BUNDLES = [ROOT / "data" / "caption" / name / "bundle" for name in ("procap", "static")]
PATIENCE = 300.0
"""Seconds that a swap may take on a busy machine."""
GROWTH = 1.10
"""Memory at the end over memory in the middle that still counts as flat."""


@dataclass
class Load:
    """What the clients saw."""

    seconds: float
    latencies: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    models: set[str] = field(default_factory=set)
    memory: list[int] = field(default_factory=list)
    """Bytes of the service, in even steps."""

    @property
    def rate(self) -> float:
        return len(self.latencies) / self.seconds

    def quantile(self, share: float) -> float:
        return sorted(self.latencies)[int(share * (len(self.latencies) - 1))]

    @property
    def growth(self) -> float:
        """The last quarter's median over the second quarter's."""
        quarter = max(1, len(self.memory) // 4)
        return statistics.median(self.memory[-quarter:]) / statistics.median(self.memory[quarter : 2 * quarter])


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.load", description=__doc__)
    parser.add_argument("--bundles", type=Path, nargs=2, default=BUNDLES, help="the model, and what replaces it")
    parser.add_argument("--seconds", type=float, default=20, help="of load, all parts together")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--batch", type=int, default=16)
    asked = parser.parse_args(words)
    part = asked.seconds / 3
    with tempfile.TemporaryDirectory() as folder, registry(Path(folder), asked.bundles) as promote:
        one = ("--batch", "1", "--patience", "0")
        many = ("--batch", str(asked.batch))
        with served(Path(folder), *one) as (process, port):
            single = load(process, port, asked.clients, part)
        with served(Path(folder), *many) as (process, port):
            batched = load(process, port, asked.clients, part)
        with served(Path(folder), *many) as (process, port):
            swap = threading.Timer(part / 3, promote)
            swap.start()
            swapped = load(process, port, asked.clients, part, models=2)
            swap.join()
    print(f"{asked.clients} clients, {part:.0f} s each, ratios to one pair at a time")
    print(f"{'':24}{'requests':>9}{'failed':>8}{'rate':>8}{'p50':>8}{'p95':>8}{'memory':>9}")
    parts = {"one at a time": single, f"batches to {asked.batch}": batched, "and a swap": swapped}
    for name, seen in parts.items():
        ratios = [seen.rate / single.rate, *(seen.quantile(q) / single.quantile(q) for q in (0.5, 0.95))]
        print(f"{name:24}{len(seen.latencies):9}{len(seen.failures):8}", end="")
        print("".join(f"{ratio:7.2f}x" for ratio in ratios) + f"{seen.growth:8.2f}x")
    print(f"(one at a time: {single.rate:.1f} pairs/s, p50 {1000 * single.quantile(0.5):.0f} ms, "
          f"p95 {1000 * single.quantile(0.95):.0f} ms, {single.memory[-1] / 2**20:.0f} MiB)")  # fmt: skip
    print(f"models that answered during the swap: {', '.join(sorted(swapped.models))}")
    wrong = [text for seen in parts.values() for text in seen.failures[:3]]
    wrong += ["only one model answered during the swap"] * (len(swapped.models) != 2)
    wrong += [f"{name}: memory grew" for name, seen in list(parts.items())[:2] if seen.growth > GROWTH]
    for text in wrong:
        print(f"WRONG: {text}")
    return bool(wrong)


@contextlib.contextmanager
def registry(folder: Path, bundles: Sequence[Path]) -> Iterator[Callable[[], Any]]:
    """A store in a folder with two versions, the first of them champion; gives a function that promotes the second."""
    from flows.addresses import INSIDE
    from flows.store import connect

    os.environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{folder / 'mlflow.db'}"
    client = connect(folder)
    experiment = client.create_experiment("load", (folder / "artifacts").as_uri())
    client.create_registered_model("procap")
    for bundle in bundles:
        run = client.create_run(experiment).info
        client.log_artifacts(run.run_id, str(bundle), f"model/{INSIDE}")
        client.create_model_version("procap", f"{run.artifact_uri}/model", run.run_id)
    client.set_registered_model_alias("procap", "champion", "1")
    yield lambda: client.set_registered_model_alias("procap", "champion", "2")


@contextlib.contextmanager
def served(folder: Path, *words: str) -> Iterator[tuple[psutil.Process, int]]:
    """``procap serve`` in a process of its own, and its port."""
    from flows.process import end_family

    command = [sys.executable, "-m", "flows.cli", "serve", "--port", "0", "--every", "0.5", "--log", "warning", *words]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=log, text=True
        )
        try:
            line = process.stdout.readline() if process.stdout else ""
            if not line:
                raise RuntimeError((folder / "log").read_text())
            yield psutil.Process(process.pid), int(line.split()[0].rsplit(":", 1)[1])
        finally:
            end_family(process)


def load(process: psutil.Process, port: int, clients: int, seconds: float, models: int = 1) -> Load:
    """Ask for ``seconds`` with so many clients, and longer until so many models have answered.

    The first second warms up and does not count.
    """
    seen, begin, ended = Load(seconds), time.monotonic() + 1, threading.Event()
    threads = [threading.Thread(target=_ask, args=(port, number, begin, ended, seen)) for number in range(clients)]
    for thread in threads:
        thread.start()
    spent = 0.0
    while spent < seconds or (len(seen.models) < models and spent < seconds + PATIENCE):
        time.sleep(0.1)
        spent = time.monotonic() - begin
        if spent > 0:
            seen.memory.append(process.memory_info().rss)
    ended.set()
    for thread in threads:
        thread.join()
    seen.seconds = time.monotonic() - begin
    return seen


def _ask(port: int, number: int, begin: float, ended: threading.Event, seen: Load) -> None:
    names = json.loads((EXAMPLES / "examples.json").read_text())
    body, kind = encode(*(EXAMPLES / names[number % len(names)][end] for end in ("before", "after")))
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    while not ended.is_set():
        start = time.monotonic()
        try:
            client.request("POST", "/v1/caption", body, {"Content-Type": kind})
            answer = client.getresponse()
            said = json.loads(answer.read())
            if answer.status != 200:
                seen.failures.append(f"{answer.status} {said['what']}")
                continue
        except (OSError, http.client.HTTPException, ValueError) as error:
            seen.failures.append(f"{type(error).__name__}: {error}")
            client.close()
            continue
        seen.models.add(said["model"]["address"])
        if start > begin:
            seen.latencies.append(time.monotonic() - start)


def encode(before: Path, after: Path) -> tuple[bytes, str]:
    """A pair as a form, and its Content-Type."""
    parts = [
        b'--x\r\nContent-Disposition: form-data; name="%s"; filename="a.png"\r\n\r\n%s\r\n' % (name, path.read_bytes())
        for name, path in ((b"before", before), (b"after", after))
    ]
    return b"".join([*parts, b"--x--\r\n"]), "multipart/form-data; boundary=x"


if __name__ == "__main__":
    sys.exit(main())
