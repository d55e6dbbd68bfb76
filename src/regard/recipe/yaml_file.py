"""YAML as recipes use it: plain values only, each key once, and 1e-4 is a number.

PyYAML follows YAML 1.1, where `no` is false (and Norwegian a truth value), 1e-4 a word and 1:30 ninety. Only the plain
values of YAML 1.2 are read here. Tags, anchors and aliases are refused: a recipe has no use for them, and they are the way
a small file becomes a large or a dangerous one.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from regard.errors import RecipeError

LARGEST = 1 << 17  # bytes; a recipe is a page or two


class _Loader(yaml.SafeLoader):
    """SafeLoader with the plain values of YAML 1.2 and no key twice."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        found: dict[Hashable, Any] = {}
        for key_node, value_node in node.value:
            key = self.construct_object(key_node, deep=True)
            line = key_node.start_mark.line + 1
            if not isinstance(key, str):
                raise RecipeError(f"line {line}: a key is a word, got {key!r}")
            if key in found:
                raise RecipeError(f"line {line}: the key {key!r} is given twice; keep one")
            found[key] = self.construct_object(value_node, deep=True)
        return found


def _number(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int | float:
    text = node.value.replace("_", "")
    try:
        return int(text)
    except ValueError:
        return float(text.replace(".inf", "inf").replace(".nan", "nan"))


_Loader.add_constructor("tag:yaml.org,2002:float", _number)
_Loader.add_constructor("tag:yaml.org,2002:map", _Loader.construct_mapping)
for _tag, _pattern, _first in (
    ("null", r"(?:~|null|Null|NULL|)", ["~", "n", "N", ""]),
    ("bool", r"(?:true|True|TRUE|false|False|FALSE)", list("tTfF")),
    (
        "float",
        r"[-+]?(?:\.[0-9]+|[0-9][0-9_]*(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.inf|\.nan",
        list("-+0123456789."),
    ),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), _first)


def parse(text: str) -> Any:
    """The value a YAML text stands for."""
    try:
        for token in yaml.scan(text, Loader=_Loader):
            for kind, name in (
                (yaml.TagToken, "tag"),
                (yaml.AnchorToken, "anchor"),
                (yaml.AliasToken, "alias"),
            ):
                if isinstance(token, kind):
                    raise RecipeError(
                        f"line {token.start_mark.line + 1}: a recipe has plain values only, no {name}; write it out"
                    )
        return yaml.load(text, Loader=_Loader)  # a SafeLoader, see above
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}: " if mark is not None else ""
        raise RecipeError(f"{where}not YAML: {error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise RecipeError(f"not YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise RecipeError("nested too deeply; a recipe has a few levels") from None


def read(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file. Errors name the file, and the line where there is one."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise RecipeError(f"there is no recipe {path}") from None
    except OSError as error:
        raise RecipeError(f"{path} cannot be read: {error.strerror}") from None
    if len(raw) > LARGEST:
        raise RecipeError(f"{path} is {len(raw):,} bytes long; a recipe has at most {LARGEST:,}")
    try:
        value = parse(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise RecipeError(f"{path} is not UTF-8: byte {error.start}; save it as UTF-8") from None
    except RecipeError as error:
        raise RecipeError(f"{path}: {error}") from None
    if value is None:
        raise RecipeError(f"{path} is empty; `regard recipes small` prints a recipe to start from")
    if not isinstance(value, dict):
        raise RecipeError(f"{path} holds {_what(value)}, and a recipe is a mapping of keys to values")
    return value


def _what(value: Any) -> str:
    return "a list" if isinstance(value, list) else f"the single value {str(value)[:40]!r}"


class _Dumper(yaml.SafeDumper):
    """Safe, and sure to be read back: PyYAML writes line ends other than \\n as they are, and reads them as spaces."""


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    quoted = any(c in value for c in "\x85\u2028\u2029\ufeff")
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style='"' if quoted else None)


_Dumper.add_representer(str, _text)


def write(value: Any) -> str:
    """A mapping as YAML text, keys in their own order."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)
