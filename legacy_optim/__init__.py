# pyright: strict
"""The `flax.optim` of flax 0.5.3 on today's JAX: `import legacy_optim as optim`.

The public names are listed in `__init__.pyi`. JAX is imported with the first optimizer that is
asked for, not with the package: a program may set `JAX_ENABLE_X64` or `XLA_FLAGS` after
`import legacy_optim`, and `legacy_optim.install()` comes before JAX.
"""

import importlib
import os
import sys


def _read_modules() -> dict[str, str]:
    """Returns the module of each public name; not by lazy_loader, which `python -S` lacks."""
    modules: dict[str, str] = {}
    with open(os.path.join(os.path.dirname(__file__), "__init__.pyi"), encoding="utf-8") as stub:
        for line in stub:
            if line.startswith("from ."):
                _, module, _, _, _, name = line.split()
                modules[name] = module.lstrip(".")
    return modules


_MODULES = _read_modules()
__all__ = [*_MODULES]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> object:
    """An optimizer, or a module of the old API, imported when first asked for."""
    if name in _MODULES:
        value = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
        globals()[name] = value
        return value
    module = f"{__name__}.{name}"
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        from legacy_optim.hooks import missing_name  # no program's start needs these
        from legacy_optim.new_names import missing_class

        message = f"module {__name__!r} has no attribute {name!r}{missing_class(name)}"
        frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
        raise missing_name(message, frame, __name__) from None


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
