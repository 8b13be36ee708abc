"""What a step imports and reads, and so what its stage in ``dvc.yaml`` must watch.

python -m tests.architecture.watched     writes the code dependencies into dvc.yaml
"""

import ast
import inspect
import sys
from functools import cache
from pathlib import Path
from typing import Any

import grimp

from procap.captioners import CAPTIONERS
from procap.config import Params
from procap.steps import PER_CAPTIONER

ROOT = Path(__file__).parents[2]
PARAMS = "params"
"""The name under which every function holds the parameters; the test relies on it."""


@cache
def graph() -> Any:
    """Which module of ``procap`` imports which."""
    return grimp.build_graph("procap", cache_dir=None)


def module_file(name: str) -> Path:
    """The file of a module, relative to the project."""
    path = ROOT / Path(*name.split("."))
    return (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).relative_to(ROOT)


def upstream(module: str, imports: Any = None) -> set[str]:
    """A module, all it imports, directly or not, and the packages around them that hold more than a docstring."""
    found = {module} | (imports or graph()).find_upstream_modules(module)
    around = {name.rsplit(".", depth)[0] for name in found for depth in range(1, name.count(".") + 1)}
    return found | {name for name in around if _says_something(name)}


@cache
def _says_something(package: str) -> bool:
    body = ast.parse((ROOT / module_file(package)).read_text(encoding="utf-8")).body
    return any(not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)) for node in body)


def code_of(step: str, imports: Any = None) -> set[str]:
    """Files that a stage must watch, as ``dvc.yaml`` writes them.

    A step that asks the captioners' registry for a class gets the file of the captioner it runs for, or, where
    it runs once for all, of each. What a captioner imports counts like what the step imports.
    """
    modules = upstream(f"procap.steps.{step}", imports)
    captioners = {name: path.partition(":")[0] for name, path in CAPTIONERS.items()}
    files = set()
    if "procap.captioners" in modules:
        for module in captioners.values():
            modules |= upstream(module, imports) - {module}
        if step in PER_CAPTIONER:
            files = {"procap/captioners/${item.captioner}.py"}
        else:
            files = {module_file(module).as_posix() for module in captioners.values()}
        modules -= set(captioners.values())
    return files | {module_file(module).as_posix() for module in modules}


def params_of(step: str) -> set[str]:
    """Dotted names of all parameters that a step reads: ``caption``, ``sample.kept``, ``seed``.

    Read off the source of the step's module and of what it uses from other modules of ``procap.steps``: every
    function there calls its parameters ``params``. A property of ``Params`` counts as what its source reads.
    """
    found: set[str] = set()
    for code in _used(f"procap.steps.{step}", None, set()):
        found |= _reads(code, PARAMS)
    return {name for name in found if not any(name.startswith(other + ".") for other in found)}


def _used(module: str, names: set[str] | None, seen: set[str]) -> list[ast.AST]:
    """The definitions ``names`` of a module of ``procap.steps``, all if None, and those that they use there."""
    tree = ast.parse((ROOT / module_file(module)).read_text(encoding="utf-8"))
    defined = {n.name: n for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    imported = {
        alias.asname or alias.name: (node.module, alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("procap.steps.")
        for alias in node.names
    }
    code: list[ast.AST] = []
    todo = set(defined) if names is None else set(names)
    while todo:
        name = todo.pop()
        if f"{module}.{name}" in seen or name not in defined:
            continue
        seen.add(f"{module}.{name}")
        code.append(defined[name])
        mentioned = {node.id for node in ast.walk(defined[name]) if isinstance(node, ast.Name)}
        todo |= mentioned & set(defined)
        for other, theirs in (imported[word] for word in mentioned & set(imported)):
            code += _used(other, {theirs}, seen)
    return code


def _reads(tree: ast.AST, holder: str) -> set[str]:
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == holder:
            outer = parents.get(node)
            inner = outer.attr if isinstance(outer, ast.Attribute) else None
            found |= _names(node.attr, inner, parents.get(node))
    return found


def _names(first: str, second: str | None, around: Any) -> set[str]:
    field = Params.model_fields.get(first)
    if field is None:
        attribute = inspect.getattr_static(Params, first)
        if isinstance(attribute, property):
            source = inspect.getsource(attribute.fget)
            return _reads(ast.parse("if True:\n" + source if source.startswith(" ") else source), "self")
        if first == "model_dump":
            return _dumped(around)
        if first == "own":
            return {"${item.captioner}"}
        raise AssertionError(f"params.{first}: the test does not know what this reads")
    section = field.alias or first
    inside = getattr(field.annotation, "model_fields", {})
    return {f"{section}.{second}"} if second in inside else {section}


def _dumped(call: Any) -> set[str]:
    """What ``params.model_dump(include={...})`` reads, given as pydantic takes it; all sections without ``include``."""
    for keyword in call.keywords if isinstance(call, ast.Call) else ():
        if keyword.arg == "include":
            chosen = ast.literal_eval(keyword.value)
            parts = chosen if isinstance(chosen, dict) else dict.fromkeys(chosen, True)
            return {
                name
                for key, inner in parts.items()
                for name in ([key] if inner is True else [f"{key}.{i}" for i in inner])
            }
    return {field.alias or name for name, field in Params.model_fields.items()}


def declared(text: str) -> dict[str, Any]:
    """The stages of a ``dvc.yaml``."""
    from ruamel.yaml import YAML

    return YAML(typ="safe").load(text)["stages"]


def write() -> None:
    """Put the code dependencies of every stage into dvc.yaml, in front of its data; comments stay."""
    from ruamel.yaml import YAML

    path, yaml = ROOT / "dvc.yaml", YAML()
    yaml.width = 120
    yaml.indent(mapping=2, sequence=4, offset=2)
    document = yaml.load(path.read_text(encoding="utf-8"))
    for step, stage in document["stages"].items():
        data = [dep for dep in stage.get("deps", ()) if not dep.endswith(".py")]
        stage["deps"][:] = [*data, *sorted(code_of(step))]
    with path.open("w", encoding="utf-8") as file:
        yaml.dump(document, file)


if __name__ == "__main__":
    sys.exit(write())
