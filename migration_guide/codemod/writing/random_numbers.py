"""`--old-random-numbers`: JAX draws as it did in flax.optim's time."""

import re

import libcst as cst

from migration_guide.codemod.writing import placement

SETTING = "jax_threefry_partitionable"
LINE = f'jax.config.update("{SETTING}", False)'
_KEYS = re.compile(r"\bPRNGKey\(|\brandom\.key\(")


def makes_keys(data: bytes) -> bool:
    """True if a file seems to make keys of JAX."""
    return _KEYS.search(data.decode("utf-8", "replace")) is not None


def is_missing(module: cst.Module) -> bool:
    """True if a module makes keys, and does not say by which setting numbers are drawn."""
    return _KEYS.search(module.code) is not None and SETTING not in module.code


def add(module: cst.Module) -> cst.Module:
    """The module with the setting behind its imports."""
    line = cst.parse_statement(LINE, config=module.config_for_parsing)
    return placement.behind_imports(module, line, "jax")
