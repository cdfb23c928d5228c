"""Reads an installed release by importing it, in the Python that the release is for.

    python imported.py PACKAGE > snapshot.json

Needs nothing but the standard library of Python 3.7.
"""

import importlib
import inspect
import json
import pkgutil
import sys
import types
import warnings

NOT_PUBLIC = ("tests", "testing", "conftest", "examples", "setup", "distutils", "doc")


def snapshot(package):
    """Module -> name -> {"keywords": [...], "attributes": {name: keywords}}."""
    modules = {}
    for name in sorted(_modules(package)):
        try:
            module = importlib.import_module(name)
        except BaseException as error:
            print(name, repr(error), file=sys.stderr)
            continue
        modules[name] = {
            key: _entry(value) if _is_own(module, value) else {}
            for key, value in _members(module).items()
            if _is_of(package, module, value)
        }
    return modules


def _modules(package):
    top = importlib.import_module(package)
    names = [package]
    for info in pkgutil.walk_packages(top.__path__, package + ".", onerror=lambda name: None):
        parts = info.name.split(".")
        if not any(p.startswith("_") or p in NOT_PUBLIC for p in parts):
            names.append(info.name)
    return names


def _members(owner):
    members = {}
    # NumPy's names that warn are in no `dir`.
    for name in [*dir(owner), *getattr(owner, "__deprecated_attrs__", ())]:
        if name.startswith("_") and name != "_DeviceArray":
            continue
        try:
            members[name] = getattr(owner, name)
        except BaseException:
            continue
    return members


def _is_of(package, module, value):
    """Leaves out what a module only imports for itself from another package."""
    top = package.partition(".")[0]
    if isinstance(value, types.ModuleType):
        return value.__name__.partition(".")[0] == top
    of = str(getattr(value, "__module__", None) or top).partition(".")[0]
    return hasattr(module, "__path__") or of in (top, "builtins")


def _is_own(module, value):
    """True if a value is defined in this module, or re-exported from a private one."""
    of = str(getattr(value, "__module__", None) or "")
    return hasattr(module, "__path__") or of == module.__name__ or "._" in of


def _entry(value):
    entry = {}
    if isinstance(value, type):
        attributes = {}
        for owner in reversed(value.__mro__):
            if owner is value or owner.__name__.startswith("_"):
                for name in vars(owner):
                    if not name.startswith("_"):
                        attributes[name] = _keywords(vars(owner)[name], method=True)
        fields = getattr(value, "__dataclass_fields__", {})
        attributes.update({name: [] for name in fields if not name.startswith("_")})
        entry["attributes"] = {name: attributes[name] for name in sorted(attributes)}
    entry["keywords"] = _keywords(value)
    return {key: part for key, part in entry.items() if part}


def _keywords(value, method=False):
    first = 1 if method and not isinstance(value, staticmethod) else 0
    value = getattr(value, "__func__", value)
    if not callable(value) or (isinstance(value, type) and method):
        return []
    try:
        parameters = list(inspect.signature(value).parameters.values())
    except BaseException:
        return []
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return sorted(p.name for p in parameters[first:] if p.kind in kinds and p.name[:1] != "_")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print(json.dumps(snapshot(sys.argv[1])))
