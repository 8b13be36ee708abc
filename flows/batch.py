"""Captions of a table of pairs, shard by shard: on this machine, or on a Dask or Ray cluster.

A shard is a task; finished ones are files and are not computed again. A picture that cannot be read has its own line.
"""

import json
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from prefect import flow, get_run_logger, task
from prefect.cache_policies import NO_CACHE

from flows.origin import parsed
from flows.process import mark_process
from flows.promotion import find
from flows.store import connect
from procap.errors import BadInput
from procap.files import file_digest, write_json, write_text

Engine = Literal["local", "dask", "ray"]
TRANSIENT = (ConnectionError, TimeoutError)
"""Of the store or the cluster; bad input never helps itself."""


def _may_help(_task: Any, _run: Any, state: Any) -> bool:
    error = state.result(raise_on_failure=False)
    return isinstance(error, TRANSIENT) or isinstance(error.__cause__, TRANSIENT)


@task(
    task_run_name="rows {start} to {stop}", cache_policy=NO_CACHE, persist_result=False, retries=2,
    retry_delay_seconds=[10, 60], retry_condition_fn=_may_help,
)  # fmt: skip
def caption_shard(
    table: str, out: str, start: int, stop: int, model: str, device: str, batch: int, beams: int
) -> tuple[int, int]:
    """Caption some rows of a table, a JSON line each, unless that was done: (pairs, of them bad)."""
    from procap.captioners import Decoding
    from procap.captioning.table import caption_rows, read_rows

    path = part(Path(out), start)
    if not path.exists():
        rows = read_rows(Path(table))[start:stop]
        lines = caption_rows(_captioner(model, device), Path(table).parent, rows, batch=batch, decoding=Decoding(beams))
        write_text(path, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
    told = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return len(told), sum("error" in line for line in told)


@lru_cache(maxsize=1)
def _captioner(model: str, device: str) -> Any:
    """Opened once per process."""
    from procap import load_captioner

    return load_captioner(model, device)


@flow(name="shards", persist_result=False, on_running=[mark_process])
def shards(table: str, out: str, count: int, shard: int, model: str, device: str, batch: int, beams: int) -> list[Any]:
    """All shards of a table; the task runner says where."""
    futures = [
        caption_shard.submit(table, out, start, min(start + shard, count), model, device, batch, beams)
        for start in range(0, count, shard)
    ]
    return [future.result() for future in futures]


@flow(name="batch-caption", persist_result=False, on_running=[mark_process])
def batch_caption(
    pairs: str,
    out: str,
    model: str = "models:/procap@champion",
    shard: int = 512,
    engine: Engine = "local",
    workers: int = 1,
    address: str | None = None,
    device: str = "auto",
    batch: int = 16,
    beams: int = 1,
) -> None:
    """Caption every row of ``pairs`` (.csv, .tsv, .jsonl or .parquet with columns before and after).

    ``out`` is a folder: a file per shard while it works, captions.jsonl when it is done. The same call continues one
    that was interrupted. ``address`` is a running cluster's; without one, ``workers`` processes are started here.
    """
    from prefect.artifacts import create_table_artifact

    from procap.captioning.table import read_rows

    if shard < 1 or workers < 1:
        raise BadInput("nothing would be done", where="shard, workers", expected="1 or more", do="mend them")
    table, folder = Path(pairs).resolve(), Path(out).resolve()
    count, fixed = len(read_rows(table)), pinned(model)
    begin(folder, {"table": file_digest(table), "model": fixed, "shard": shard, "rows": count, "beams": beams})
    get_run_logger().info("%s pairs, %s", count, fixed)
    told = shards.with_options(task_runner=runner(engine, workers, address))(
        str(table), str(folder), count, shard, fixed, device, batch, beams
    )
    bad = sum(errors for _, errors in told)
    write_text(folder / "captions.jsonl", "".join(part(folder, start).read_text(encoding="utf-8")
                                                  for start in range(0, count, shard)))  # fmt: skip
    rows = [{"pairs": count, "bad": bad, "model": fixed, "written": str(folder / "captions.jsonl")}]
    create_table_artifact(rows, key="captions")


def part(folder: Path, start: int) -> Path:
    """The file of the shard that begins with this row."""
    return folder / f"part-{start:08d}.jsonl"


def begin(folder: Path, plan: dict[str, Any]) -> None:
    """Note what the folder is for; BadInput where it is another work's."""
    path = folder / "plan.json"
    if path.exists() and json.loads(path.read_text(encoding="utf-8")) != plan:
        raise BadInput(
            "the folder holds captions of another table, model or shard size",
            where=str(folder),
            expected=f"those of {path}",
            do="name another folder, or remove this one",
        )
    if not path.exists() and folder.exists() and any(folder.iterdir()):
        raise BadInput("something is there", where=str(folder), expected="a new folder", do="name another")
    write_json(path, plan)


def pinned(model: str) -> str:
    """The version that an alias names now, so that a promotion in the middle does not mix two models."""
    if not model.startswith("models:/"):
        return model
    name, source = parsed(model)
    return f"models:/{name}/{find(connect(Path.cwd()), name, source).version}"


def runner(engine: Engine, workers: int, address: str | None) -> Any:
    """Where the shards are computed; BadInput where the engine is not installed."""
    try:
        if engine == "dask":
            from prefect_dask import DaskTaskRunner

            if address:
                return DaskTaskRunner(address=address)
            kwargs = {"n_workers": workers, "threads_per_worker": 1, "processes": True, "dashboard_address": None}
            return DaskTaskRunner(cluster_kwargs=kwargs)
        if engine == "ray":
            from prefect_ray import RayTaskRunner

            return RayTaskRunner(address=address) if address else RayTaskRunner(init_kwargs={"num_cpus": workers})
    except ImportError as error:
        raise BadInput(
            f"the engine {engine} is not installed ({error})", where="engine", expected=f"the extra procap[{engine}]",
            do=f"`pip install -c constraints.txt -e '.[{engine}]'`",
        ) from None  # fmt: skip
    from prefect.task_runners import ThreadPoolTaskRunner

    return ThreadPoolTaskRunner(max_workers=workers)
