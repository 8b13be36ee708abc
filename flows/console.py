"""What a step says, on the terminal: a bar where somebody watches, plain lines where a file or a log does."""

import contextlib
import math
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from pathlib import Path
from typing import Any, TextIO, TypeVar

from procap.report import Report, Silent

T = TypeVar("T")

LINE_SECONDS = 10.0
"""A log gets one line of progress in so many seconds."""


class Terminal(Silent):
    """Shows notes, progress and the latest numbers."""

    def __init__(self, name: str, out: TextIO | None = None) -> None:
        self.name, self.out = name, out or sys.stdout
        self.bar: Any = None  # rich.progress.Progress while one is shown
        self.latest = self.current = ""
        self.said = 0.0

    def note(self, text: str) -> None:
        self._line(text)

    def now(self, values: Mapping[str, float]) -> None:
        self.current = _told(values)

    def metrics(self, values: Mapping[str, float], step: int | None = None) -> None:
        if self.current and next(iter(values), "").startswith("train_"):
            return  # what happens now is shown
        self.latest = _told(dict(list(values.items())[:4]))
        if self.bar is None and time.monotonic() - self.said > LINE_SECONDS:
            self._line(("" if step is None else f"update {step}: ") + self.latest)

    def progress(self, items: Iterable[T], what: str, total: int | None = None, done: int = 0) -> Iterator[T]:
        if total is None and isinstance(items, Sized):
            total = len(items) + done
        if self.out.isatty() and self.bar is None:
            yield from self._watched(items, what, total, done)
        else:
            yield from self._logged(items, what, total, done)

    def _watched(self, items: Iterable[T], what: str, total: int | None, done: int) -> Iterator[T]:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeRemainingColumn(compact=True, elapsed_when_finished=True),
            TextColumn("[dim]{task.fields[latest]}"),
        )
        with Progress(*columns, console=Console(file=self.out)) as self.bar:
            task = self.bar.add_task(f"{self.name}: {what}", total=total, completed=done, latest="")
            try:
                for item in items:
                    yield item
                    self.bar.update(task, advance=1, latest=self._shown())
            finally:
                self.bar, self.current = None, ""

    def _logged(self, items: Iterable[T], what: str, total: int | None, done: int) -> Iterator[T]:
        start, began_at, self.said = time.monotonic(), done, time.monotonic()
        for item in items:
            yield item
            done += 1
            if time.monotonic() - self.said > LINE_SECONDS:
                rate = (done - began_at) / (time.monotonic() - start)
                left = f", {(total - done) / rate:.0f} s left" if total and rate else ""
                self._line(f"{what} {done}{f'/{total}' if total else ''}{left}  {self._shown()}".rstrip())
        if self.bar is None:
            self.current = ""
        self._line(f"{what} {done}{f'/{total}' if total else ''} in {time.monotonic() - start:.1f} s")

    def _shown(self) -> str:
        return "  ".join(filter(None, (self.current, self.latest)))

    def _line(self, text: str) -> None:
        self.said = time.monotonic()
        line = f"{self.name}: {text}"
        with contextlib.suppress(OSError, ValueError):  # a closed pipe or file must not stop the step
            if self.bar is not None:
                self.bar.console.print(line, markup=False, highlight=False)
            else:
                print(line, file=self.out, flush=True)


class Everyone:
    """Passes on to several reports; the first that knows a registry answers for it."""

    def __init__(self, reports: Sequence[Report]) -> None:
        self.reports = tuple(reports)

    def metrics(self, values: Mapping[str, float], step: int | None = None) -> None:
        for report in self.reports:
            report.metrics(values, step)

    def now(self, values: Mapping[str, float]) -> None:
        for report in self.reports:
            report.now(values)

    def picture(self, name: str, image: Any) -> None:
        for report in self.reports:
            report.picture(name, image)

    def artifact(self, path: Path) -> None:
        for report in self.reports:
            report.artifact(path)

    def note(self, text: str) -> None:
        for report in self.reports:
            report.note(text)

    def progress(self, items: Iterable[T], what: str, total: int | None = None, done: int = 0) -> Iterator[T]:
        if total is None and isinstance(items, Sized):
            total = len(items) + done
        for report in self.reports:
            items = report.progress(items, what, total, done)
        yield from items

    def model(self, bundle: Path, tags: Mapping[str, str], alias: str | None) -> dict[str, Any] | None:
        answers = (report.model(bundle, tags, alias) for report in self.reports)
        return next((answer for answer in answers if answer is not None), None)


def _told(values: Mapping[str, float]) -> str:
    return "  ".join(f"{name} {_short(value)}" for name, value in values.items())


def _short(value: float) -> str:
    return f"{value:.4g}" if math.isfinite(value) else str(value)
