"""Ablations as data: ``infra/ablations.yaml`` holds tables, a table rows, a row what it changes in ``params.yaml``."""

from collections.abc import Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from flows.lineage import plan_digests, stage_name
from flows.presets import merge, nested, read_preset, read_sections
from procap.config import CaptionerName, check_params
from procap.errors import BadInput

FILE = Path("infra/ablations.yaml")
HOME = Path(".procap/ablations")

RowName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9 +._-]*$")]


class Row(BaseModel):
    """One configuration of a table."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: RowName
    overrides: dict[str, Any]
    """{dotted key: value}"""
    captioner: CaptionerName = "procap"
    paper: dict[str, float] = {}
    """{metric: published figure}"""

    @property
    def folder(self) -> str:
        return self.name.replace(" ", "-")


class Table(BaseModel):
    """Rows to be compared with one of them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    about: str
    rows: Annotated[tuple[Row, ...], Field(min_length=1)]
    base: str | None = None
    """The row that the others are compared with; the first unless named."""

    @model_validator(mode="after")
    def _consistent(self) -> "Table":
        if len({row.folder for row in self.rows}) < len(self.rows):
            raise ValueError("two rows have the same name")
        if self.base is not None and self.base not in [row.name for row in self.rows]:
            raise ValueError(f"no row is called '{self.base}', which `base` names")
        return self

    @property
    def base_row(self) -> str:
        return self.base or self.rows[0].name


@dataclass(frozen=True)
class Job:
    """A row with one seed."""

    row: Row
    replicate: int
    params: Mapping[str, Any]
    """The whole of ``params.yaml``."""
    digests: Mapping[str, str]
    """{stage: what its result follows from}, in the order they run; the target is the last."""

    @property
    def target(self) -> str:
        return stage_name("evaluate", self.row.captioner)

    @property
    def digest(self) -> str:
        return self.digests[self.target]

    @property
    def name(self) -> str:
        return f"{self.row.name} / {self.replicate}"

    def folder(self, home: Path) -> Path:
        """Its worktree in the table's folder; files beside it have its name and an ending."""
        return home / self.row.folder / str(self.replicate)


def table_names(root: Path) -> list[str]:
    """The tables that there are."""
    return list(read_sections(root / FILE, "safe"))


def read_table(root: Path, name: str) -> Table:
    """Read one table; its overrides are checked by ``jobs``."""
    tables = read_sections(root / FILE, "safe")
    if name not in tables:
        raise BadInput(
            f"no table '{name}'", where=str(FILE), expected="one of " + ", ".join(tables), do="name one of them"
        )
    try:
        return Table.model_validate(tables[name])
    except ValidationError as error:
        problem = error.errors()[0]
        raise BadInput(
            problem["msg"].removeprefix("Value error, "),
            where=f"{FILE}: " + ".".join([name, *map(str, problem["loc"])]),
            expected="about, base (or none) and rows with name, overrides, captioner (or none) and paper (or none)",
            do="mend that table",
        ) from None


def base_params(root: Path, preset: str | None, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """``params.yaml`` with a preset and overrides on it, checked."""
    params = deepcopy(read_sections(root / "params.yaml", "safe"))
    if preset:
        merge(params, deepcopy(read_preset(root, preset)))
    merge(params, nested(overrides))
    check_params(params, where="params.yaml" + (f" with preset {preset}" if preset else ""))
    return params


def jobs(
    root: Path, name: str, table: Table, params: Mapping[str, Any], seeds: int, wanted: Collection[str]
) -> list[Job]:
    """Every row with every seed, all rows once before any row twice.

    The seeds are those of stage 1 and stage 2 alone, counted from ``params["replicate"]``; corpus, frames and
    tokenizer are the same for all. Raises BadInput that names a wanted row whose parameters are not valid; other
    rows of that kind are left out.
    """
    found = []
    for replicate in range(params["replicate"], params["replicate"] + seeds):
        for row in table.rows:
            try:
                found.append(_job(root, name, row, params, replicate))
            except BadInput:
                if row.name in wanted:
                    raise
    return found


def _job(root: Path, name: str, row: Row, params: Mapping[str, Any], replicate: int) -> Job:
    own = deepcopy(dict(params))
    merge(own, nested(row.overrides | {"replicate": replicate}))
    where = f"{FILE}: {name}, row '{row.name}'"
    checked = check_params(own, where=where)
    if row.captioner not in checked.captioners:
        raise BadInput(
            f"the captioner '{row.captioner}' is not among those that are built",
            where=where,
            expected="one of " + ", ".join(checked.captioners),
            do="add it to `captioners` in params.yaml",
        )
    return Job(row, replicate, own, plan_digests(root, stage_name("evaluate", row.captioner), own))


def chosen(table: Table, names: Sequence[str]) -> set[str]:
    """The rows asked for; all, if none is named."""
    known = [row.name for row in table.rows]
    if unknown := [name for name in names if name not in known]:
        raise BadInput(f"no row '{unknown[0]}'", where="--rows", expected="some of " + ", ".join(known), do="mend it")
    return set(names or known)
