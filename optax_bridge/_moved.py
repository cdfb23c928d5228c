# pyright: strict
"""Modules that have moved are found under the names that they had.

`import optax_bridge.train_state` gives the very module `optax_bridge.training.train_state`. What is
public is a name of `optax_bridge` itself; this is for programs that reached further in.
"""

import importlib
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

# Old name -> new name, both without the package; several where a module was divided.
# `multi_optimizer` is a function's name now.
NAMES = {
    "arguments": "exact.arguments",
    "axis_metadata": "metadata.axis_metadata",
    "boxed": "exact.boxed",
    "checkpoints.api": "checkpoints.train_states",
    "checkpoints.convert": (
        "checkpoints.mapping",
        "checkpoints.mapping_back",
        "checkpoints.legacy_optimizer",
        "checkpoints.choosing",
    ),
    "checkpoints.convert_command": "checkpoints.terminal.convert",
    "checkpoints.inspect_command": "checkpoints.terminal.inspect",
    "checkpoints.transfer": (
        "checkpoints.conversion",
        "checkpoints.write",
        "checkpoints.mapping_back",
        "checkpoints.devices",
    ),
    "cli": "command",
    "conversion": "legacy",
    "correspondence.command": "correspondence.terminal",
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
    "spmd.train_command": "spmd.terminal",
    "train_state": "training.train_state",
    "training.conversion": "training.in_memory",
    "transformation": "exact.transformation",
}


class _MovedModules:
    # Finder and loader by its methods: their base classes take 20 ms to import.
    def __init__(self, package: str, names: Mapping[str, str | tuple[str, ...]]):
        self.names = {f"{package}.{old}": new for old, new in names.items()}
        self.package = package
        self.specs: dict[str, ModuleSpec | None] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname in self.names else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        new = self.names[spec.name]
        if isinstance(new, tuple):
            parts = [importlib.import_module(f"{self.package}.{name}") for name in new]
            divided = ModuleType(spec.name)
            for part in reversed(parts):
                names = (name for name in vars(part) if not name.startswith("__"))
                vars(divided).update({name: getattr(part, name) for name in names})
            return divided
        module = importlib.import_module(f"{self.package}.{new}")
        self.specs[module.__name__] = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        if module.__name__ in self.specs:  # importing has put the old name there
            module.__spec__ = self.specs.pop(module.__name__)


def find_moved(package: str, names: Mapping[str, str | tuple[str, ...]]) -> None:
    """Lets the modules of a package be imported under their old names.

    Args:
      package: the package's name.
      names: old name -> new name, both without the package; of a module that was divided, the
        modules that have its names now.
    """
    sys.meta_path.append(_MovedModules(package, names))
