"""`Module`: a node in a tree of named objects, whose methods run in contexts."""

import contextlib
import copy
import functools
import inspect
import logging
import sys
from collections.abc import Callable
from typing import Any, NamedTuple, Optional, TypeVar

import jax

from optax_bridge.metadata.trees import PyTree
from optax_bridge.spmd.config import (
    REQUIRED,
    ConfigBase,
    Configurable,
    Required,
    RequiredFieldMissingError,
    RequiredFieldValue,
    config_class,
    similar_names,
)
from optax_bridge.spmd.module.context import (
    ChildNameConflictError,
    InvalidDescendantError,
    InvocationContext,
    ModuleNode,
    OutputCollection,
    check_name,
    child_context,
    current_context,
)

Method = Callable[..., PyTree]
F = TypeVar("F", bound=Method)


def nowrap(fn: F) -> F:
    """Marks a public method as one that enters no context; overriding methods are marked too."""
    fn._nowrap = True  # type: ignore[attr-defined]
    return fn


def is_marked(cls: type, name: str, mark: str) -> bool:
    """True if the class's method, or one of that name in a base, has the mark."""
    return any(getattr(vars(base).get(name), mark, False) for base in cls.__mro__)


def public_methods(cls: type, *, base: type) -> dict[str, Method]:
    """The methods of a class that enter a context: by name, not bound."""
    return {
        name: method
        for name, method in inspect.getmembers(cls, inspect.isfunction)
        if not name.startswith("_")
        and not hasattr(base, name)
        and "self" in inspect.signature(method).parameters
        and not is_marked(cls, name, "_nowrap")
    }


def in_context(module: ModuleNode, method: Method) -> Method:
    """The method, bound to the module, entering the module's context when it is called."""
    bound = method.__get__(module)

    @functools.wraps(bound)
    def call(*args: object, **kwargs: object) -> object:
        context = current_context()
        try:
            if context is None or context.module is None or context.module is module:
                return bound(*args, **kwargs)
            with contextlib.ExitStack() as entered:
                _enter(context, module, entered)
                return bound(*args, **kwargs)
        except Exception as error:
            if not hasattr(error, "__notes__"):  # the innermost call says it
                error.add_note(f"In {method.__name__}{_types(args, kwargs)} of {module!r}.")
            raise

    return call


def _enter(context: InvocationContext, module: ModuleNode, entered: contextlib.ExitStack) -> None:
    assert context.module is not None
    try:
        path = context.module.path_to_descendant_module(module)
    except InvalidDescendantError:
        pass
    else:
        for name in path[:-1]:
            entered.enter_context(_passing_through(name))
        entered.enter_context(child_context(path[-1]))
        return
    try:
        shared = context.module.get_shared_module(module)
    except InvalidDescendantError as error:
        raise InvalidDescendantError(
            f"{module!r} is not below {context.module!r}, in whose context {context.path()} it was "
            f"called, and not shared with it: {error}"
        ) from None
    entered.enter_context(child_context(shared.name, module=shared.module, state=shared.state))


def _passing_through(name: str) -> contextlib.AbstractContextManager[InvocationContext]:
    """A scope in a child's context on the way to one below it; again, for another one below it."""
    context = current_context()
    assert context is not None
    passed: dict[str, OutputCollection] = vars(context).setdefault("_passed_through", {})
    if name not in passed:
        passed[name] = context.output_collection.add_child(name)
    return child_context(name, output_collection=passed[name])


def _types(args: tuple[object, ...], kwargs: dict[str, object]) -> str:
    def one(value: object) -> str:
        if isinstance(value, jax.Array):
            return f"{value.dtype}{list(value.shape)}"
        return type(value).__name__

    types = [one(value) for value in args]
    types += [f"{name}={one(value)}" for name, value in kwargs.items()]
    return f"({', '.join(types)})"


_log = logging.getLogger(__name__)


class _ModuleType(type):
    def __call__(cls, *args: object, **kwargs: object) -> Any:
        module = super().__call__(*args, **kwargs)
        module.__post_init__()
        return module


class Module(Configurable, metaclass=_ModuleType):
    """A node in a tree of modules.

    A module is made from a config; it makes its children by `_add_child`, in its `__init__`, and
    has them as attributes. It holds no state: `functional` passes state, random key and outputs
    apart from the arguments, as an `InvocationContext`, which public methods enter when they are
    called.
    """

    @config_class
    class Config(Configurable.Config):
        """Config of a module."""

        name: Required[str] = REQUIRED
        vlog: Optional[int] = None  # noqa: UP045 (programs look at it)

    class SharedModuleInfo(NamedTuple):
        """A module that an ancestor shares.

        Attributes:
          name: under which it is shared.
          module: the module.
          state: its part of the sharing ancestor's state.
        """

        name: str
        module: "Module"
        state: PyTree

    def __init__(self, cfg: Config, *, parent: "Module | None") -> None:
        super().__init__(cfg)
        self._name = cfg.name
        self._parent = parent
        self._children: dict[str, Module] = {}
        # Relative paths by name, and names by the shared module's id, which lives as long as we do.
        self._paths_to_shared_modules: dict[str, list[str]] = {}
        self._shared_module_names: dict[int, str] = {}

    def __post_init__(self) -> None:
        """Runs after `__init__` of the most derived class."""
        self._enter_contexts()

    def _enter_contexts(self) -> None:
        wrapped = self._wrapped_methods_for_auto_child_context()
        self._wrapped_names = tuple(wrapped)
        for name, method in wrapped.items():
            setattr(self, name, method)

    def __getstate__(self) -> dict[str, object]:
        wrapped = {*self.__dict__.get("_wrapped_names", ()), "_wrapped_names"}
        return {name: value for name, value in self.__dict__.items() if name not in wrapped}

    def __setstate__(self, state: dict[str, object]) -> None:
        vars(self).update(state)
        for name, path in self._paths_to_shared_modules.items():
            self._shared_module_names[id(self._descendant(path))] = name
        self._enter_contexts()

    def _methods_to_wrap_for_auto_child_context(self) -> dict[str, Method]:
        """The methods that enter a context: by name, not bound."""
        return public_methods(type(self), base=Module)

    def _wrap_methods_with_auto_child_context(
        self, methods: dict[str, Method]
    ) -> dict[str, Method]:
        """The methods bound, and entering a context."""
        return {name: in_context(self, method) for name, method in methods.items()}

    def _wrapped_methods_for_auto_child_context(self) -> dict[str, Method]:
        """Returns the functions that replace the class's methods on the instance."""
        methods = self._methods_to_wrap_for_auto_child_context()
        return self._wrap_methods_with_auto_child_context(methods)

    # The tree.

    @property
    def name(self) -> str:
        """The module's name."""
        return self._name

    @property
    def parent(self) -> "Module | None":
        """The module that it is a child of."""
        return self._parent

    @property
    def children(self) -> dict[str, "Module"]:
        """Its children by name, in the order in which they were added."""
        return dict(self._children)

    def path(self) -> str:
        """The names of the modules from the root to this one, dotted."""
        return self.name if self.parent is None else f"{self.parent.path()}.{self.name}"

    def __repr__(self) -> str:
        return f"{type(self).__qualname__}@{self.path()}"

    def __str__(self) -> str:
        return repr(self)

    def __getattr__(self, name: str) -> Any:
        children = self.__dict__.get("_children", {})
        if name in children:
            return children[name]
        if isinstance(getattr(type(self), name, None), property):
            return getattr(type(self), name).fget(self)  # raises the same error again
        similar = similar_names(name, [*dir(type(self)), *children])
        meant = f" (did you mean: [{', '.join(similar)}])" if similar else ""
        raise AttributeError(f"{type(self).__qualname__} has no attribute {name!r}{meant}")

    def _check_child_config(self, name: str, child_config: object) -> None:
        if not isinstance(child_config, Module.Config):
            raise TypeError(
                f"child {name!r} of {self!r}: expected the config of a module (Module.Config), got "
                f"a {type(child_config).__name__}: {child_config!r}"
            )

    def _add_child(self, name: str, child_config: ConfigBase, **kwargs: object) -> Any:
        """Makes a child from a copy of its config."""
        check_name(name, "module")
        self._check_child_config(name, child_config)
        if not isinstance(child_config.name, RequiredFieldValue) and child_config.name != name:
            raise ValueError(
                f"child {name!r} of {self!r}: its config says that its name is "
                f"{child_config.name!r}."
            )
        if name in self._children or hasattr(type(self), name):
            raise ChildNameConflictError(
                f"{self!r} has a {'child' if name in self._children else 'method'} {name!r} "
                f"already; children are {list(self._children)}."
            )
        cfg = copy.deepcopy(child_config)
        cfg.set(name=name)
        try:
            child = cfg.instantiate(parent=self, **kwargs)
        except RequiredFieldMissingError as error:
            if isinstance(error.__cause__, RequiredFieldMissingError):  # it says where
                raise
            raise RequiredFieldMissingError(f"{self.path()}.{name}: {error}") from error
        self._children[name] = child
        return child

    def path_to_descendant_module(self, module: ModuleNode) -> list[str]:
        """The names from this module to one below it; [] for itself.

        Raises:
          InvalidDescendantError: it is not below.
        """
        names: list[str] = []
        at: ModuleNode | None = module
        while at is not None and at is not self:
            names.append(at.name)
            at = at.parent
        if at is None:
            raise InvalidDescendantError(f"{module!r} is not a descendant of {self!r}.")
        return names[::-1]

    def _descendant(self, path: list[str]) -> "Module":
        module = self
        for name in path:
            module = module._children[name]
        return module

    # Sharing.

    def _share_with_descendants(self, module: "Module", *, shared_module_name: str) -> None:
        """Lets modules below this one call a module that is not below them."""
        path = self.path_to_descendant_module(module)
        if shared_module_name in self._paths_to_shared_modules:
            raise ValueError(
                f"{self!r} shares a module as {shared_module_name!r} already: "
                f"{'.'.join(self._paths_to_shared_modules[shared_module_name])}."
            )
        self._paths_to_shared_modules[shared_module_name] = path
        self._shared_module_names[id(module)] = shared_module_name

    def get_shared_module(self, name_or_module: str | ModuleNode) -> SharedModuleInfo:
        """Finds a shared module, from the current context upwards.

        Raises:
          InvalidDescendantError: no ancestor shares it, or its state is not there.
        """
        context = current_context()
        while context is not None:
            sharer, name = context.module, None
            if isinstance(name_or_module, str):
                name = name_or_module
            elif isinstance(sharer, Module):
                name = sharer._shared_module_names.get(id(name_or_module))
            if isinstance(sharer, Module) and name in sharer._paths_to_shared_modules:
                path = sharer._paths_to_shared_modules[name]
                state = context.state
                for part in path:
                    if not isinstance(state, dict) or part not in state:
                        raise InvalidDescendantError(
                            f"module {name!r}, shared by {sharer!r} as {'.'.join(path)}: the state "
                            f"does not contain '{part}'."
                        )
                    state = state[part]
                return Module.SharedModuleInfo(name, sharer._descendant(path), state)
            context = context.parent
        name = name_or_module if isinstance(name_or_module, str) else name_or_module.name
        raise InvalidDescendantError(
            f"{self!r} has no ancestor that shares module '{name}' with it, by "
            "_share_with_descendants."
        )

    # The content of the context.

    def get_invocation_context(self) -> InvocationContext:
        """The current context, which must be of this module.

        Raises:
          RuntimeError: it is not, or there is no context.
        """
        context = current_context()
        if context is None:
            raise RuntimeError(
                f"{self!r} was called without a context: call it with `functional`, or by a public "
                "method of its parent."
            )
        if context.module is not self:
            raise RuntimeError(
                f"the current context {context.path()} belongs to another module than {self!r}: "
                f"{context.module!r}. Only public methods of a module enter its context."
            )
        return context

    @property
    def state(self) -> PyTree:
        """The module's state in this call."""
        return self.get_invocation_context().state

    @property
    def is_training(self) -> bool:
        """True if this call is for training."""
        return self.get_invocation_context().is_training

    @property
    def prng_key(self) -> jax.Array | None:
        """The random key of this call; the same each time."""
        return self.get_invocation_context().prng_key

    def add_summary(self, name: str, value: PyTree) -> None:
        """Leaves a summary of this call."""
        self.get_invocation_context().add_summary(name, value)

    def add_state_update(self, name: str, value: PyTree) -> None:
        """Leaves a new value for a part of the state."""
        self.get_invocation_context().add_state_update(name, value)

    def add_module_output(self, name: str, value: PyTree) -> None:
        """Leaves an output of this call."""
        self.get_invocation_context().add_module_output(name, value)

    def get_module_outputs(self) -> dict[str, PyTree]:
        """The outputs of this call so far."""
        return self.get_invocation_context().get_module_outputs()

    def get_state_updates(self) -> PyTree:
        """The updates of state of this call so far."""
        return self.get_invocation_context().get_state_updates()

    # Messages.

    def vlog_is_on(self, level: int) -> bool:
        """True if messages of this level are logged."""
        vlog = self._config.vlog
        return vlog is not None and level <= vlog

    def vlog(self, level: int, msg: str, *args: object) -> None:
        """Logs a message, if its level is on; args as in `logging`."""
        if self.vlog_is_on(level):
            _log.info(f"@{self.path()} {msg}", *args, stacklevel=2)

    def vprint(self, level: int, fmt: str, *args: PyTree, **kwargs: PyTree) -> None:
        """Prints values when they are computed, if the level is on; as `jax.debug.print`."""
        if self.vlog_is_on(level):
            frame = sys._getframe(1)
            location = f"{frame.f_code.co_filename}:{frame.f_lineno} {self.path()}"
            location = location.replace("{", "{{").replace("}", "}}")
            jax.debug.print(f"{location} {fmt}", *args, **kwargs)

    def __call__(self, *args: PyTree, **kwargs: PyTree) -> PyTree:
        """Calls `forward`."""
        return self.forward(*args, **kwargs)
