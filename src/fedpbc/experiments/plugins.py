"""Plugins: Python files whose algorithms, link schemes, data sets and models become known by being
imported.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any

from fedpbc.errors import PLUGIN_MODULES, InputError, one_line
from fedpbc.options import check_type

__all__ = ["load_plugin", "load_plugins"]


def load_plugins(values: Mapping[str, Any]) -> None:
    """Import the plugins that the values of a configuration name."""
    for plugin in check_type("plugins", values.get("plugins"), list[str] | None) or ():
        load_plugin(plugin)


def load_plugin(path: str, option: str = "plugins") -> ModuleType:
    """Import a Python file; ``option`` is what error messages call it."""
    file = Path(path)
    if not file.is_file():
        raise InputError(option, path, "a Python file that exists")
    # Named by its content: a run's copy of a plugin is the same plugin.
    name = f"{PLUGIN_MODULES}{sha256(file.read_bytes()).hexdigest()[:16]}"
    specification = importlib.util.spec_from_file_location(name, file)
    if specification is None or specification.loader is None:
        raise InputError(option, path, "a Python file, ending in .py")
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module
    writes_bytecode, sys.dont_write_bytecode = not sys.dont_write_bytecode, True
    try:
        # Nothing is written beside a user's file.
        specification.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        if isinstance(error, InputError):
            raise
        raise InputError(option, path, f"importable ({one_line(error)})") from error
    finally:
        sys.dont_write_bytecode = not writes_bytecode
    return module
