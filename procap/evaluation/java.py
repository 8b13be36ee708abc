"""The parts of caption scoring that are Java programs: the PTB tokenizer, METEOR and SPICE.

SPICE needs two more jars than pycocoevalcap brings: they lie in its folder, or in the one that SPICE_JARS names.
The other jars are those inside pycocoevalcap. They are started here rather than through its classes, which write into
site-packages, can wait for ever, and shift every later caption by one after a stray line break.
"""

import json
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

_TOKENIZER, _METEOR = ("the PTB tokenizer", "500 MB"), ("METEOR", "2 GB")
_SPICE = ("SPICE", "8 GB", "without its jars of Stanford CoreNLP")
MODELS = ("stanford-corenlp-3.6.0.jar", "stanford-corenlp-3.6.0-models.jar")


class JavaFailed(Exception):
    """A Java program did not do its work; the message says why, and nothing about this machine."""

    def __init__(self, message: str, program: str, memory: str, without: str = "without `java` on PATH") -> None:
        super().__init__(message)
        self.program, self.memory = program, memory
        self.without = without
        """What leaves the program out."""


def why_no_java() -> str | None:
    """Why Java programs cannot run here, or None where they can."""
    if shutil.which("java") is None:
        return "there is no `java` on PATH; install a Java runtime (Debian: default-jre-headless)"
    try:
        done = subprocess.run(["java", "-version"], capture_output=True, timeout=120, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "`java -version` did not answer; mend the Java runtime"
    return None if done.returncode == 0 else "`java -version` fails; mend the Java runtime"


def why_no_spice() -> str | None:
    """Why SPICE cannot run here, or None where it can; Java aside."""
    folder = _models()
    missing = [name for name in MODELS if not (folder / name).exists()]
    if not missing:
        return None
    where = "the folder SPICE_JARS" if "SPICE_JARS" in os.environ else "pycocoevalcap/spice/lib"
    return f"{where} lacks {' and '.join(missing)} (Stanford CoreNLP 3.6.0)"


def ptb_lines(captions: Sequence[str], timeout: float = 600) -> list[str]:
    """Penn-Treebank words of every caption, lower case, one space between; punctuation is still there.

    One process for all of them. White space is collapsed first: the tokenizer ends a line at ``\\r`` and U+2028 too.
    """
    command = ["java", "-cp", "stanford-corenlp-3.4.1.jar", "edu.stanford.nlp.process.PTBTokenizer"]
    command += ["-preserveLines", "-lowerCase", "-encoding", "UTF-8"]
    text = "".join(" ".join(caption.split()) + "\n" for caption in captions) + "end\n"
    try:
        done = subprocess.run(
            command, input=text.encode(), capture_output=True, timeout=timeout, cwd=_jars("tokenizer"), check=False
        )
    except subprocess.TimeoutExpired:
        raise JavaFailed(f"no answer within {timeout:g} s", *_TOKENIZER) from None
    lines = done.stdout.decode().rstrip("\n").split("\n")
    if done.returncode or len(lines) != len(captions) + 1 or lines[-1] != "end":
        words = f"exit status {done.returncode}, {len(lines) - 1} lines for {len(captions)} captions"
        raise JavaFailed(words, *_TOKENIZER)
    return lines[:-1]


class Meteor:
    """METEOR 1.5 in one process, which takes seconds to start and milliseconds per question afterwards.

    Use as a context manager: the first question starts the process, leaving it ends the process. Raises JavaFailed when
    the process dies or does not answer a question within ``timeout`` seconds.
    """

    def __init__(self, timeout: float = 300) -> None:
        self.timeout = timeout
        self.late = False
        self.process: Any = None

    def __enter__(self) -> "Meteor":
        return self

    def __exit__(self, *_: object) -> None:
        if self.process is None:
            return
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            with suppress(BrokenPipeError):  # what was still to be written has no reader any more
                pipe.close()
        self.process = None

    def start(self) -> Any:
        """The process, started unless it is there; the first question does so too."""
        self.process = self.process or subprocess.Popen(
            ["java", "-jar", "-Xmx2G", "meteor-1.5.jar", "-", "-", "-stdio", "-l", "en", "-norm"],
            cwd=_jars("meteor"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        return self.process

    def statistics(self, words: str, references: Sequence[str]) -> str:
        """What METEOR counted for one pair; ``scores`` makes numbers of any selection of such lines."""
        parts = [part.replace("|||", "") for part in (*references, words)]
        return self._ask(" ||| ".join(("SCORE", *parts)), answers=1)[0]

    def scores(self, statistics: Sequence[str]) -> tuple[float, list[float]]:
        """METEOR in [0, 1] of the selection as a corpus, and of each pair."""
        answers = self._ask(" ||| ".join(("EVAL", *statistics)), answers=len(statistics) + 1)
        try:
            *pairs, corpus = (float(answer) for answer in answers)
        except ValueError:
            raise JavaFailed("answers that are no numbers", *_METEOR) from None
        return corpus, pairs

    def _ask(self, line: str, answers: int) -> list[str]:
        process = self.start()
        watch = threading.Timer(self.timeout, self._give_up)
        watch.daemon = True
        watch.start()
        try:
            process.stdin.write(line.replace("\n", " ").encode() + b"\n")
            process.stdin.flush()
            lines = [process.stdout.readline().decode().strip() for _ in range(answers)]
        except (BrokenPipeError, ValueError):
            lines = [""]
        finally:
            watch.cancel()
        if not all(lines):
            words = f"no answer within {self.timeout:g} s" if self.late else "the process ended early"
            raise JavaFailed(words, *_METEOR)
        return lines

    def _give_up(self) -> None:
        self.late = True
        self.process.kill()


def spice_scores(words: dict[str, str], references: dict[str, list[str]], timeout: float = 3600) -> dict[str, float]:
    """SPICE's F score in [0, 1] per pair. Without its cache, which Java 16 and later refuse."""
    items = [{"image_id": name, "test": words[name], "refs": references[name]} for name in sorted(words)]
    with tempfile.TemporaryDirectory() as folder:
        question, answer = Path(folder) / "in.json", Path(folder) / "out.json"
        question.write_text(json.dumps(items), encoding="utf-8")
        path = os.pathsep.join(["spice-1.0.jar", "lib/*", *(str(_models().resolve() / name) for name in MODELS)])
        command = ["java", "-Xmx8G", "-cp", path, "edu.anu.spice.SpiceScorer", str(question), "-out", str(answer)]
        command += ["-subset", "-silent"]
        try:
            done = subprocess.run(command, capture_output=True, timeout=timeout, cwd=_jars("spice"), check=False)
        except subprocess.TimeoutExpired:
            raise JavaFailed(f"no answer within {timeout:g} s", *_SPICE) from None
        if done.returncode or not answer.exists():
            raise JavaFailed(f"exit status {done.returncode}", *_SPICE)
        results = json.loads(answer.read_text(encoding="utf-8"))
    return {result["image_id"]: float(np.nan_to_num(float(result["scores"]["All"]["f"]))) for result in results}


def _models() -> Path:
    """Folder of the two jars of Stanford CoreNLP."""
    return Path(os.environ["SPICE_JARS"]) if "SPICE_JARS" in os.environ else _jars("spice") / "lib"


def _jars(part: str) -> Path:
    """Folder of pycocoevalcap with the jars of tokenizer, meteor or spice."""
    spec = find_spec("pycocoevalcap")
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(next(iter(spec.submodule_search_locations))) / part
