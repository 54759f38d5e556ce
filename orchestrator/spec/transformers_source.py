"""What the installed Transformers' configuration classes take, read from their source: to import them takes seconds.

Says nothing (None) where Transformers is not installed, or its source has another form.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any, Final

from dscampaign.jobs.shared.model_shapes import Shape

_TYPE: Final = re.compile(r"\(\s*\"([\w-]+)\",\s*(?:\"\w+\"|\()|^\s*\"([\w-]+)\":", re.MULTILINE)
_CAUSAL: Final = "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES = OrderedDict("
_MODEL: Final = re.compile(r"\(\s*\"([\w-]+)\",\s*\"(\w+)\"")


@dataclass
class ConfigClass:
    """A configuration class with all that it inherits.

    Attributes:
        defaults: Its fields; `...` where the default is no constant.
        whole: Fields that take whole numbers only.
        aliases: Other names of fields.
        names: Every name that it may understand.
    """

    defaults: dict[str, Any] = field(default_factory=dict)
    whole: set[str] = field(default_factory=set)
    aliases: dict[str, str] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)

    def canonical(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Fields as given, by the class's own names."""
        return {self.aliases.get(name, name): value for name, value in given.items()}


def package_of(python: str | None) -> Path | None:
    """The folder of the Transformers that a Python loads, by default this one; imports nothing."""
    if python is None:
        found = find_spec("transformers")
        return Path(found.origin).parent if found and found.origin else None
    return next(Path(python).parent.parent.glob("lib/python3*/site-packages/transformers"), None)


@cache
def model_types(package: Path) -> frozenset[str]:
    """Every `model_type`; empty where that cannot be read."""
    names = ("auto_mappings.py", "configuration_auto.py")
    text = "".join(_text(package / "models" / "auto" / name) for name in names)
    return frozenset(one or other for one, other in _TYPE.findall(text))


@cache
def causal_types(package: Path) -> frozenset[str]:
    """Those of causal language models."""
    return frozenset(one or other for one, other in _TYPE.findall(_causal(package)))


@cache
def says(package: Path, model_type: str, flag: str) -> bool | None:
    """What the causal language model of a type says of itself, such as `_supports_sdpa`; None where it is not read."""
    name = dict(_MODEL.findall(_causal(package))).get(model_type)
    if name is None:
        return None
    module = model_type.replace("-", "_")
    usual = package / "models" / module / f"modeling_{module}.py"
    for path in chain([usual], (package / "models").glob("*/modeling_*.py")):
        if f"class {name}(" in _text(path):
            with suppress(LookupError):
                return next((value for node in _ancestry(path, name) if (value := _flag(node, flag)) is not None), None)
            return None
    return None


@cache
def config_class(package: Path, model_type: str) -> ConfigClass | None:
    """The configuration class of a model type."""
    module = model_type.replace("-", "_")
    usual = package / "models" / module / f"configuration_{module}.py"
    said = re.compile(rf"\bmodel_type\b[^=\n]*= [\"']{re.escape(model_type)}[\"']")
    for path in chain([usual], (package / "models").glob("*/configuration_*.py")):
        if said.search(_text(path)):
            classes = (node for node in _tree(path).body if isinstance(node, ast.ClassDef))
            named = next((node for node in classes if any(said.search(ast.unparse(item)) for item in node.body)), None)
            result = ConfigClass()
            return result if named and _add(result, path, named) else None
    return None


def of_shape(shape: Shape, python: str | None) -> ConfigClass | None:
    """The class of a configuration."""
    package, model_type = package_of(python), shape.get("model_type")
    return config_class(package, model_type) if package and isinstance(model_type, str) else None


def _causal(package: Path) -> str:
    _, _, rest = _text(package / "models" / "auto" / "modeling_auto.py").partition(_CAUSAL)
    return rest.partition("\n)")[0]


def _ancestry(path: Path, name: str) -> Iterator[ast.ClassDef]:
    """A class and what it inherits, the nearest first.

    Raises:
        LookupError: One is not found.
    """
    found = _class(path, name)
    if found is None:
        raise LookupError(name)
    file, node = found
    yield node
    for base in node.bases:
        if isinstance(base, ast.Name):
            yield from _ancestry(file, base.id)


def _flag(node: ast.ClassDef, name: str) -> bool | None:
    """An attribute of a class that is true or false; None where its body has none."""
    for item in node.body:
        targets = item.targets if isinstance(item, ast.Assign) else [getattr(item, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            value = _constant(getattr(item, "value", None))
            return value if isinstance(value, bool) else None
    return None


def _add(result: ConfigClass, path: Path, node: ast.ClassDef) -> bool:
    """Adds a class and what it inherits, which counts less; False where a base is not found."""
    for item in node.body:
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            _add_field(result, item.target.id, item.value, ast.unparse(item.annotation))
        elif isinstance(item, ast.Assign) and isinstance(item.targets[0], ast.Name):
            if item.targets[0].id == "attribute_map" and isinstance(found := _constant(item.value), dict):
                result.aliases = {**found, **result.aliases}
        elif isinstance(item, ast.FunctionDef):
            if item.name == "__init__":
                _add_parameters(result, item.args)
            result.names |= {item.name, *_words(item)}
    result.names |= {*result.defaults, *result.aliases}
    return all(_add_base(result, path, base.id) for base in node.bases if isinstance(base, ast.Name))


def _add_field(result: ConfigClass, name: str, value: ast.expr | None, annotation: str) -> None:
    if name not in result.defaults and "ClassVar" not in annotation:
        result.defaults[name] = _constant(value)
        if annotation in ("int", "int | None", "Optional[int]"):
            result.whole.add(name)


def _add_parameters(result: ConfigClass, args: ast.arguments) -> None:
    """The fields of a class that has a constructor, as all had before Transformers 5."""
    named = args.args[len(args.args) - len(args.defaults) :]
    for arg, default in [*zip(named, args.defaults, strict=True), *zip(args.kwonlyargs, args.kw_defaults, strict=True)]:
        whole = isinstance(value := _constant(default), int) and not isinstance(value, bool)
        _add_field(result, arg.arg, default, "int" if whole else "")


def _add_base(result: ConfigClass, path: Path, name: str) -> bool:
    found = _class(path, name)
    return _add(result, *found) if found else not name.endswith("Config")


def _class(path: Path, name: str) -> tuple[Path, ast.ClassDef] | None:
    for file in (path, *_imported(path, name)):
        for node in _tree(file).body:
            if isinstance(node, ast.ClassDef) and node.name == name:
                return file, node
    return None


def _imported(path: Path, name: str) -> Iterator[Path]:
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.ImportFrom) and node.level and any(alias.name == name for alias in node.names):
            yield path.parents[node.level - 1].joinpath(*(node.module or "").split(".")).with_suffix(".py")


def _words(function: ast.FunctionDef) -> Iterable[str]:
    """Words that a method may take out of its keyword arguments."""
    texts = (node.value for node in ast.walk(function) if isinstance(node, ast.Constant))
    return (text for text in texts if isinstance(text, str) and text.isidentifier())


def _constant(node: ast.expr | None) -> Any:
    try:
        return ... if node is None else ast.literal_eval(node)
    except ValueError:
        return ...


@cache
def _tree(path: Path) -> ast.Module:
    try:
        return ast.parse(_text(path))
    except SyntaxError:  # for a newer Python
        return ast.Module([], [])


@cache
def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
