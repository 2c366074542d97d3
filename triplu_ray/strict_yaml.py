"""YAML as space files and overrides are written in: safe, and strict where YAML is lax."""

import re
from typing import Any

import yaml

from triplu_ray.errors import UserError, reason


class _Loader(yaml.SafeLoader):
    """Safe YAML in which `1e-3` is a number (YAML 1.2) and a repeated key is a mistake.

    So is an integer of more than 64 bits, which neither arrays nor tables could hold.
    """

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        merge = "tag:yaml.org,2002:merge"
        keys = [self.construct_object(key, True) for key, _ in node.value if key.tag != merge]
        for key in keys:
            if keys.count(key) > 1:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} appears twice", node.start_mark
                )
        return super().construct_mapping(node, deep)

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        value = int(super().construct_yaml_int(node))
        if not -(1 << 63) <= value < 1 << 63:
            raise yaml.constructor.ConstructorError(
                None, None, "an integer of more than 64 bits", node.start_mark
            )
        return value


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(\.[0-9]+|[0-9][0-9_]*(\.[0-9_]*)?)[eE][-+]?[0-9]+$"),
    list("-+.0123456789"),
)


def parse_yaml(text: str, where: str) -> Any:
    """The content of a text; UserError, which begins with `where`, if it is no YAML."""
    try:
        return yaml.load(text, _Loader)  # a SafeLoader
    except yaml.YAMLError as error:
        problem = getattr(error, "problem", None) or reason(error)
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        raise UserError(f"{where}{line}: not YAML: {problem}") from error
    except Exception as error:  # PyYAML lets some through: `!!int ""`, `!!bool 3`, nests too deep
        raise UserError(f"{where}: not YAML: {type(error).__name__}: {reason(error)}") from error
