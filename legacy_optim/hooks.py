# pyright: strict
"""Finders for `sys.meta_path`: a function is called right after a module was imported.

Standard library's modules are imported late here: what this file imports is in every program's
process before its first line.
"""

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import FrameType, ModuleType
    from typing import Any

    Path = Sequence[str] | None


class AfterImport:
    """A finder for `sys.meta_path`: finds what the others find, and calls a function afterwards."""

    def __init__(
        self,
        packages: "frozenset[str]",
        after: "Callable[[ModuleType], None]",
        stand_in: "Callable[[str], ModuleSpec | None]",
    ):
        self._packages = packages
        self._after = after
        self._stand_in = stand_in

    def find_spec(
        self, fullname: str, path: "Path" = None, target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        """See `importlib.abc.MetaPathFinder`."""
        # A finder that came first meanwhile would go around this: pytest's takes `jax.test_util`.
        if sys.meta_path[0] is not self and self in sys.meta_path:
            sys.meta_path.remove(self)
            sys.meta_path.insert(0, self)
        if fullname.partition(".")[0] not in self._packages or "._" in fullname:
            return None
        stand_in = self._stand_in(fullname)
        if stand_in is not None:
            return stand_in
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                if hasattr(spec.loader, "exec_module"):
                    loader: Any = _Loader(spec.loader, self._after)
                    spec.loader = loader
                return spec
        return None


class _Loader:
    """Loads as another loader, and leaves no trace of itself."""

    def __init__(self, loader: "Any", after: "Callable[[ModuleType], None]"):
        self._loader = loader
        self._after = after

    def __getattr__(self, name: str) -> "Any":
        return getattr(self._loader, name)

    def create_module(self, spec: "ModuleSpec") -> "ModuleType | None":
        return self._loader.create_module(spec) if hasattr(self._loader, "create_module") else None

    def exec_module(self, module: "ModuleType") -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._after(sys.modules.get(module.__name__, module))


class SayingWhatIsGone:
    """The last finder: fails to import some modules, and says why and what to do."""

    def __init__(self, packages: "frozenset[str]", gone: "Callable[[str], str | None]"):
        self._packages = packages
        self._gone = gone

    def find_spec(
        self, fullname: str, path: "Path" = None, target: "ModuleType | None" = None
    ) -> None:
        """See `importlib.abc.MetaPathFinder`."""
        del path, target
        top = fullname.partition(".")[0]
        if top in self._packages and top != fullname and not is_being_imported(top):
            message = self._gone(fullname)
            if message is not None:
                raise ModuleNotFoundError(message, name=fullname)


def is_being_imported(name: str) -> bool:
    """True while a module's code is still running."""
    spec = getattr(sys.modules.get(name), "__spec__", None)
    return bool(getattr(spec, "_initializing", False))


def missing_name(text: str, frame: "FrameType", module: str) -> Exception:
    """Returns an error whose text the program's author sees, also at `from module import name`."""
    from opcode import opmap  # not at every start

    # There an AttributeError loses its text.
    imports = frame.f_lasti >= 0 and frame.f_code.co_code[frame.f_lasti] == opmap["IMPORT_FROM"]
    return ImportError(text, name=module) if imports else AttributeError(text)
