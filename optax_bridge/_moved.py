"""Modules that have moved are found under the names that they had.

`import optax_bridge.train_state` gives the very module `optax_bridge.training.train_state`. What is
public is a name of `optax_bridge` itself; this is for programs that reached further in.
"""

import importlib
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

# Old name -> new name, both without the package. `multi_optimizer` is a function's name now.
NAMES = {
    "arguments": "exact.arguments",
    "axis_metadata": "metadata.axis_metadata",
    "boxed": "exact.boxed",
    "cli": "command",
    "conversion": "legacy",
    "entry": "correspondence.entry",
    "factorization": "optimizers.axis_roles",
    "full_train_state": "training.full_train_state",
    "kept_axes": "metadata.kept_axes",
    "learning_rate": "training.learning_rate",
    "masks": "optimizers.selectors",
    "nnx_optimizer": "training.nnx",
    "param_axes": "metadata.param_axes",
    "parse": "correspondence.expression",
    "recipe": "correspondence.recipe",
    "restoring": "training.restoring",
    "sharding": "training.shardings",
    "train_state": "training.train_state",
    "transformation": "exact.transformation",
}


class _MovedModules(MetaPathFinder, Loader):
    def __init__(self, package: str, names: Mapping[str, str]):
        self.names = {f"{package}.{old}": f"{package}.{new}" for old, new in names.items()}
        self.specs: dict[str, ModuleSpec | None] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname in self.names else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(self.names[spec.name])
        self.specs[module.__name__] = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self.specs.pop(module.__name__)  # importing has put the old name there


def find_moved(package: str, names: Mapping[str, str]) -> None:
    """Lets the modules of a package be imported under their old names.

    Args:
      package: the package's name.
      names: old name -> new name, both without the package.
    """
    sys.meta_path.append(_MovedModules(package, names))
