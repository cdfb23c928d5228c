"""`InvocationContext`: the implicit arguments and outputs of a call; the stack of a thread."""

import contextlib
import dataclasses
import functools
import hashlib
import re
import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any, NamedTuple, Optional, ParamSpec, Protocol, Self, TypeVar

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.sharding import AxisType, PartitionSpec

from optax_bridge.metadata.trees import PyTree
from optax_bridge.spmd.metrics import is_summary

_NAME = re.compile(r"[a-z][a-z0-9_]*")


class ChildNameConflictError(ValueError):
    """A module has two children of one name."""


class InvalidDescendantError(ValueError):
    """A module is not below another one, or not shared by one above."""


class OutputConflictError(ValueError):
    """Two calls leave their outputs in one place, as when a child is called twice."""

    def __init__(self, message: str) -> None:
        super().__init__(
            f"{message} This is how to call a module multiple times: give each call a context of a "
            "name of its own, `with child_context('second', module=self.child): self.child(x)`."
        )


def check_name(name: str, kind: str) -> None:
    """Raises ValueError unless the name is in lower_case_with_underscores."""
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"{name!r} cannot be the name of a {kind}: it must match '{_NAME.pattern}'"
        )


class OutputCollection(NamedTuple):
    """The outputs of a tree of modules, without their results, as nested dicts by context.

    Attributes:
      summaries: values to watch: arrays or `Summary`s.
      state_updates: new values for parts of the state, such as running averages.
      module_outputs: anything else that is of interest outside.
    """

    summaries: dict[str, PyTree]
    state_updates: dict[str, PyTree]
    module_outputs: dict[str, PyTree]

    def __contains__(self, name: object) -> bool:
        return name in self.summaries

    def add_child(self, name: str) -> "OutputCollection":
        """A collection for a child, which is also a part of this one.

        Raises:
          ValueError: the name is not in lower_case_with_underscores.
          OutputConflictError: the name is taken.
        """
        check_name(name, "context")
        if name in self:
            raise OutputConflictError(
                f"{name} already present in the outputs {sorted(self.summaries)}."
            )
        child = new_output_collection()
        for ours, its in zip(self, child, strict=True):
            ours[name] = its
        return child

    def update(self, other: Self) -> None:
        """Takes over the entries of another collection."""
        for ours, its in zip(self, other, strict=True):
            ours.update(its)


def new_output_collection() -> OutputCollection:
    """An empty collection."""
    return OutputCollection(summaries={}, state_updates={}, module_outputs={})


class _ContextStack(threading.local):
    """The contexts entered, and the thread that they belong to."""

    def __init__(self, stack: "list[InvocationContext]", thread_id: int | None) -> None:
        self.stack = stack
        self.thread_id = thread_id


_global_context_stack = _ContextStack([], threading.main_thread().ident)


def in_own_thread() -> bool:
    """True if this thread has its own stack."""
    return _global_context_stack.thread_id == threading.get_ident()


def clone_context_stack() -> "list[InvocationContext]":
    """A copy of the stack, for another thread to install."""
    return list(_global_context_stack.stack)


def install_context_stack(stack: "list[InvocationContext]") -> None:
    """Makes the list this thread's stack.

    Args:
      stack: of `clone_context_stack` in the thread whose contexts go on here, or an empty list.

    Raises:
      ValueError: this thread has a stack already.
    """
    if in_own_thread():
        raise ValueError("this thread has a stack of contexts already; it cannot have another one.")
    _global_context_stack.stack = stack
    _global_context_stack.thread_id = threading.get_ident()


@contextlib.contextmanager
def own_stack() -> Generator[None, None, None]:
    """A scope with a stack of this thread's own, an empty one if it has none."""
    if in_own_thread():
        yield
        return
    before = _global_context_stack.stack, _global_context_stack.thread_id
    install_context_stack([])
    try:
        yield
    finally:
        _global_context_stack.stack, _global_context_stack.thread_id = before


P = ParamSpec("P")
T = TypeVar("T")


class ModuleNode(Protocol):
    """A node in a tree of modules: the part of `Module` that contexts use."""

    @property
    def name(self) -> str:
        """The name of the module."""
        ...

    @property
    def parent(self) -> "ModuleNode | None":
        """The module that it is a child of."""
        ...

    @property
    def children(self) -> Mapping[str, "ModuleNode"]:
        """Its children by name."""
        ...

    def path_to_descendant_module(self, module: "ModuleNode") -> list[str]:
        """The names from this module to one below it."""
        ...

    def get_shared_module(self, name_or_module: "str | ModuleNode") -> Any:
        """Name, module and state of a module that an ancestor shares."""
        ...


def child_key(key: jax.Array | None, name: str) -> jax.Array | None:
    """The random key of a child context, from its parent's and its name."""
    if key is None:
        return None
    seed = int(hashlib.md5(name.encode(), usedforsecurity=False).hexdigest(), 16) % (2**31 - 1)
    mesh = jax.sharding.get_abstract_mesh()
    compiled = isinstance(key, Tracer)
    if compiled and not mesh.empty and all(kind == AxisType.Auto for kind in mesh.axis_types):
        # Otherwise the compiler may cut the making of the key along the mesh, which costs more.
        both: tuple[jax.Array, jax.Array] = jax.lax.with_sharding_constraint(
            (key, jnp.int32(seed)), PartitionSpec()
        )
        return jax.random.fold_in(*both)
    return jax.random.fold_in(key, seed)


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=("parent", "state", "prng_key", "output_collection"),
    meta_fields=("name", "module", "is_training"),
)
@dataclasses.dataclass(eq=False, repr=False)
class InvocationContext:
    """A call of a module, in a tree of calls.

    Attributes:
      name: its name, other than those of its siblings.
      parent: the context of the calling module; None for the root.
      module: the module that is called; None in contexts made by hand for code that is no module.
      state: the module's state: the parameters of a layer, with those of its children.
      is_training: True in training.
      prng_key: the call's random key. Reading it twice gives the same key.
      output_collection: where the call leaves summaries, state updates and outputs.
    """

    name: str
    parent: Optional["InvocationContext"]
    module: ModuleNode | None
    state: PyTree
    is_training: bool
    prng_key: jax.Array | None
    output_collection: OutputCollection

    def __repr__(self) -> str:
        return f"InvocationContext({self.path()!r}, module={self.module!r})"

    def path(self) -> str:
        """The names of the contexts from the root to this one, dotted."""
        return self.name if self.parent is None else f"{self.parent.path()}.{self.name}"

    def add_child(self, name: str, **overrides: PyTree) -> "InvocationContext":
        """A context below this one.

        Args:
          name: its name. Its random key follows from ours and the name.
          **overrides: fields of the child. Otherwise its module is our module's child of that name,
            its state the module's part of ours, its outputs a part of ours under its name.

        Raises:
          ValueError: parent is overridden, or the state of a module that is neither our module
            nor its child is not given.
          OutputConflictError: there is such a child already.
        """
        if "parent" in overrides:
            raise ValueError(
                f"the parent of context {name!r} cannot be overridden: it is this one."
            )
        unknown = set(overrides) - {field.name for field in dataclasses.fields(self)}
        if unknown or "name" in overrides:
            raise TypeError(f"a context has no field to override by {sorted(unknown) or ['name']}.")
        if "module" not in overrides:
            children = {} if self.module is None else self.module.children
            if name not in children:
                raise ValueError(
                    f"{self.module!r} has no child {name!r} (children are {sorted(children)}): "
                    "say which module the context is for, `module=`."
                )
            overrides["module"] = children[name]
        if "state" not in overrides:
            overrides["state"] = self._state_of(overrides["module"])
        if "prng_key" not in overrides:
            overrides["prng_key"] = child_key(self.prng_key, name)
        if "output_collection" not in overrides:
            overrides["output_collection"] = self.output_collection.add_child(name)
        overrides.setdefault("is_training", self.is_training)
        return InvocationContext(name=name, parent=self, **overrides)

    def _state_of(self, module: ModuleNode | None) -> PyTree:
        if module is self.module:
            return self.state
        if module is not None and module.parent is not None and module.parent is self.module:
            return None if self.state is None else self.state.get(module.name)
        raise ValueError(
            f"{module!r} is neither {self.module!r}, whose context {self.path()} is, nor a child "
            "of it: its state is not known here. Pass it, `state=`."
        )

    def add_summary(self, name: str, value: PyTree) -> None:
        """Leaves a summary, in place of an earlier one of the name.

        Raises:
          ValueError: a `Summary` in it says that it is not valid.
        """
        for leaf in jax.tree.leaves(value, is_leaf=is_summary):
            if is_summary(leaf):
                leaf.validate()
        self.output_collection.summaries[name] = value

    def add_state_update(self, name: str, value: PyTree) -> None:
        """Leaves a new value for a part of the state."""
        self.output_collection.state_updates[name] = value

    def set_state_update(self, value: PyTree) -> None:
        """Leaves a new value for the whole state, which need not be a dict."""
        ours = self.output_collection.state_updates
        self.output_collection = self.output_collection._replace(state_updates=value)
        if self.parent is not None:
            above = self.parent.output_collection.state_updates
            if above.get(self.name) is ours:  # else our outputs are not a part of the parent's
                above[self.name] = value

    def add_module_output(self, name: str, value: PyTree) -> None:
        """Leaves an output.

        Raises:
          OutputConflictError: there is one of that name.
        """
        outputs = self.output_collection.module_outputs
        if name in outputs:
            raise OutputConflictError(
                f"output {name} already present in {self.path()}, of {self.module!r}."
            )
        outputs[name] = value

    def get_summaries(self) -> dict[str, PyTree]:
        """The summaries so far."""
        return self.output_collection.summaries

    def get_state_updates(self) -> PyTree:
        """The updates of state so far."""
        return self.output_collection.state_updates

    def get_module_outputs(self) -> dict[str, PyTree]:
        """The outputs so far."""
        return self.output_collection.module_outputs

    def functional(self, fn: Callable[P, T]) -> Callable[P, tuple[T, OutputCollection]]:
        """A function without side effects from one that works in this context.

        Returns:
          A function of the same arguments that returns the result of `fn` and the outputs. It
          runs in a copy of this context, whichever is current; this one does not change.
        """

        def call(*args: P.args, **kwargs: P.kwargs) -> tuple[T, OutputCollection]:
            copied = jax.tree.map(lambda x: x, self)
            with own_stack(), set_current_context(copied, require_parent=False):
                outputs = fn(*args, **kwargs)
            return outputs, copied.output_collection

        return call


def current_context() -> InvocationContext | None:
    """The innermost context, or None."""
    stack = _global_context_stack.stack
    return stack[-1] if stack else None


@contextlib.contextmanager
def set_current_context(
    context: InvocationContext, *, require_parent: bool = True
) -> Iterator[InvocationContext]:
    """A scope in which the context is the current one.

    Args:
      context: the context.
      require_parent: True if its parent must be the current context.

    Raises:
      ValueError: it is not, or, where none is current, the context has a parent.
    """
    stack = _global_context_stack.stack
    if stack and require_parent and context.parent is not stack[-1]:
        raise ValueError(
            f"the parent must match the current context: {context.path()} has the parent "
            f"{None if context.parent is None else context.parent.path()}, but "
            f"{stack[-1].path()} is current."
        )
    if not stack and require_parent and context.parent is not None:
        raise ValueError(
            f"{context.path()} must be a root context: it has a parent, but none is current."
        )
    with _scope(context):
        stack.append(context)
        try:
            yield context
        finally:
            stack.pop()


def _scope(context: InvocationContext) -> contextlib.AbstractContextManager[object]:
    """The name under which operations appear in profiles."""
    if context.name == "remat":  # of the same module as the context around it
        return contextlib.nullcontext()
    if context.module is None:
        return jax.named_scope(context.name)
    return jax.named_scope(f"{context.name}[{type(context.module).__qualname__}]")


@contextlib.contextmanager
def child_context(name: str, **overrides: PyTree) -> Iterator[InvocationContext]:
    """A scope in a child of the current context.

    Args:
      name: the child's name; its random key and the place of its outputs follow from it.
      **overrides: as in `InvocationContext.add_child`.

    Raises:
      RuntimeError: there is no current context in this thread.
    """
    context = current_context()
    if not in_own_thread():
        raise RuntimeError(
            f"child_context({name!r}): this thread has installed no stack of contexts. In the "
            "thread that starts it, `stack = clone_context_stack()`; in this one, "
            "`install_context_stack(stack)`."
        )
    if context is None:
        raise RuntimeError(f"child_context({name!r}): there is no current context.")
    with set_current_context(context.add_child(name, **overrides)) as child:
        yield child
