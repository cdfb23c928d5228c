"""The training state: parameters, optimizer state and step in one pytree (FLIP 1009)."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Never, Self

import jax
import jax.numpy as jnp
import optax
from flax.linen.fp8_ops import OVERWRITE_WITH_GRADIENT
from flax.training import train_state
from jax.core import Tracer

from optax_bridge.checks import (
    check_no_text,
    check_one_copy,
    check_optimizer_def,
    check_transformation,
)
from optax_bridge.exact.arguments import accepted_arguments, unused_arguments
from optax_bridge.exact.boxed import boxes_handled
from optax_bridge.exact.leaf_rule import ScalarOrSchedule
from optax_bridge.exact.transformation import take_step
from optax_bridge.metadata.axis_metadata import has_boxes, unboxed
from optax_bridge.metadata.trees import Extra, Leaf, OptState, Params, PyTree, Rate, Updates
from optax_bridge.training.learning_rate import learning_rate
from optax_bridge.training.old_names import OLD_ATTRIBUTES, misplaced_gradients, missing_attribute
from optax_bridge.training.restoring import fit_on_restore

if TYPE_CHECKING:  # saves 2 ms where the old API is not used
    import legacy_optim
    from optax_bridge.training.shardings import Rules

# In place of `inspect.Parameter.empty`: a step without gradients gets a message of its own.
NOT_GIVEN: Any = object()
_SET_BY_THE_STEP = ("step", "params", "opt_state")

_TAKES_RATE = (
    ". This project's optimizers, such as optax_bridge.adam(), take a rate per call; so does "
    "optax.inject_hyperparams(optax.adam)(learning_rate=1e-3), in opt_state.hyperparams"
)


class TrainState(train_state.TrainState):
    """Flax's TrainState, with exact steps, per-call arguments and a way in from `flax.optim`.

    Subclass it for further fields, as Flax's:

        >>> class BatchNormState(optax_bridge.TrainState):
        ...     batch_stats: Any
        >>> params = {"w": jnp.ones(2)}
        >>> tx = optax_bridge.adam(weight_decay=0.1)
        >>> state = BatchNormState.create(apply_fn=None, params=params, tx=tx, batch_stats=0)
        >>> state = state.apply_gradients(grads=params, learning_rate=1e-3, batch_stats=1)
        >>> int(state.step), state.batch_stats
        (1, 1)

    Attributes:
      step: steps taken, int32 scalar.
      apply_fn: usually `model.apply`; static.
      params: the parameters, any pytree of arrays.
      tx: the transformation; static.
      opt_state: its state.
    """

    def __init_subclass__(cls, **kwargs: Extra):
        """Flax's, and checkpoints with and without boxes restore into the class."""
        super().__init_subclass__(**kwargs)
        fit_on_restore(cls)

    if not TYPE_CHECKING:  # checkers are to know of no further attributes

        def __getattr__(self, name: str) -> Any:
            """Raises an error that names the successor of an attribute of the old API."""
            if name in OLD_ATTRIBUTES and not hasattr(type(self), name):
                raise missing_attribute(self, name)
            return object.__getattribute__(self, name)  # raises as ever

    def apply_gradients(
        self, *misplaced: Never, grads: Updates = NOT_GIVEN, **kwargs: Extra
    ) -> Self:
        """Takes one step.

        Args:
          *misplaced: pass nothing by position: gradients go by keyword.
          grads: gradients, a tree like `params`.
          **kwargs: new values for fields of this state; anything else goes to the transformation
            (`learning_rate=`, `value=`, `grad=`, `value_fn=`).

        Returns:
          The next state, `step` advanced by one.

        Raises:
          TypeError: an argument that is neither a field nor known to the transformation, a field
            that the step itself sets, or gradients not passed as `grads=`.
          ValueError: `grads` is not a tree like `params`, or the state is replicated.
        """
        if misplaced or grads is NOT_GIVEN:
            method = f"{type(self).__name__}.apply_gradients"
            raise misplaced_gradients(method, bool(misplaced), kwargs)
        replaced, extra = self._split_arguments(grads, kwargs)
        own_grads, own_params = _part_for_tx(grads), _part_for_tx(self.params)
        tx = self._transformation(own_grads)
        params, opt_state = take_step(tx, own_grads, self.opt_state, own_params, **extra)
        if _has_overwritten(grads):
            params = {"params": params, OVERWRITE_WITH_GRADIENT: grads[OVERWRITE_WITH_GRADIENT]}
        return self.replace(step=self.step + 1, params=params, opt_state=opt_state, **replaced)

    @property
    def learning_rate(self) -> Rate:
        """The learning rate of the next step, if the state or this project's optimizer holds it.

        A number or an array; a tuple with one for each group of a `multi_optimizer`.

        Raises:
          ValueError: it is passed per call, or unknown: `optax.adam(1e-3)` does not expose it,
            `optax.inject_hyperparams(optax.adam)(1e-3)` does.
        """
        return learning_rate(self.tx, self.opt_state, self.step, _part_for_tx(self.params))

    def update(self, *misplaced: Never, grads: Updates = NOT_GIVEN, **kwargs: Extra) -> Self:
        """Alias of `apply_gradients`; FLIP 1009 writes the step both ways."""
        return self.apply_gradients(*misplaced, grads=grads, **kwargs)

    @classmethod
    def create(
        cls,
        apply_fn: Callable[..., PyTree] | None,
        params: Params,
        tx: optax.GradientTransformation,
        **kwargs: Extra,
    ) -> Self:
        """Makes a state at step 0.

        Args:
          apply_fn: usually `model.apply`.
          params: the parameters, any pytree of arrays.
          tx: the transformation.
          **kwargs: the subclass's own fields.

        Returns:
          The state, with `tx.init(params)` as optimizer state.

        Raises:
          TypeError: the class has no such field (`FullTrainState` has the usual ones), or `tx` is
            no transformation.
        """
        check_transformation(tx)
        check_no_text(params, "params")
        unknown = kwargs.keys() - {field.name for field in dataclasses.fields(cls)}
        if unknown:
            raise TypeError(
                f"{cls.__name__}.create got {', '.join(sorted(unknown))}, for which it has no "
                "field. optax_bridge.FullTrainState has batch_stats, rngs, ema_decay, "
                "accumulate_every and dynamic_scale; subclass it, or TrainState, for fields of "
                "your own."
            )
        if "opt_state" not in kwargs:
            boxed = _part_for_tx(params)
            kwargs["opt_state"] = (boxes_handled(tx) if has_boxes(boxed) else tx).init(boxed)
        kwargs.setdefault("step", jnp.zeros([], jnp.int32))
        params, kwargs["opt_state"] = jax.tree.map(strong, (params, kwargs["opt_state"]))
        kwargs["opt_state"] = _copied_where_shared(kwargs["opt_state"], params)
        fields: dict[str, Any] = dict(apply_fn=apply_fn, params=params, tx=tx, **kwargs)
        return cls(**fields)

    @classmethod
    def create_sharded(
        cls,
        *,
        mesh: jax.sharding.Mesh,
        rules: "Rules | None" = None,
        init: Callable[[], PyTree],
        apply_fn: Callable[..., PyTree] | None,
        tx: optax.GradientTransformation,
        **kwargs: Extra,
    ) -> Self:
        """Makes a state at step 0 directly on a mesh: no array is ever whole on one device.

            state = TrainState.create_sharded(
                mesh=mesh, rules=[("embed", "data"), ("mlp", "model")],
                init=lambda: model.init(key, inputs), apply_fn=model.apply, tx=tx,
            )

        Args:
          mesh: the mesh, with automatic or explicit axes.
          rules: pairs of a logical name and axes of the mesh, or a function
            `rule(path, array) -> PartitionSpec` for parameters without boxes; none: the names in
            the boxes are axes of the mesh.
          init: returns the parameters, or the collections of `model.init`, of which "params" are
            the parameters and each other one a field of the state. It is traced.
          apply_fn: usually `model.apply`.
          tx: the transformation.
          **kwargs: the subclass's own fields.

        Returns:
          The state. Statistics are sharded like the axes of the parameter that they keep.

        Raises:
          ValueError: a name has no place on the mesh, or an axis cannot be divided over it.
        """
        from optax_bridge.training.shardings import create_sharded  # meshes, as few programs need

        return create_sharded(cls, mesh, rules, init, apply_fn=apply_fn, tx=tx, **kwargs)

    @classmethod
    def from_legacy(
        cls,
        optimizer: "legacy_optim.Optimizer",
        *,
        apply_fn: Callable[..., PyTree] | None = None,
        exact: bool = True,
        **kwargs: Extra,
    ) -> Self:
        """Takes over a legacy optimizer in the middle of its training.

        Args:
          optimizer: parameters, state and step are taken from it.
          apply_fn: usually `model.apply`.
          exact: see `optax_bridge.from_legacy`.
          **kwargs: the subclass's own fields.

        Returns:
          A state whose next step is the one that the optimizer would have taken.

        Raises:
          ValueError: the optimizer is replicated, or its state is not one that its definition
            makes.
          UnsupportedSetting: there is no such transformation for the optimizer's settings.
        """
        if "tx" in kwargs:
            raise TypeError(
                f"{cls.__name__}.from_legacy makes tx from the optimizer, with its state; for "
                "another one: state.replace(tx=tx, opt_state=tx.init(state.params))"
            )
        from optax_bridge.legacy import to_optax  # with the correspondence: 50 ms

        tx, opt_state = to_optax(optimizer, exact=exact)
        return cls.create(
            apply_fn=apply_fn,
            params=optimizer.target,
            tx=tx,
            opt_state=opt_state,
            step=jnp.asarray(optimizer.state.step, jnp.int32),
            **kwargs,
        )

    def to_legacy(self, definition: "legacy_optim.OptimizerDef") -> "legacy_optim.Optimizer":
        """Returns the legacy optimizer that continues this training.

        Args:
          definition: the definition that this state's transformation corresponds to.

        Returns:
          A `legacy_optim.Optimizer` with these parameters, this state and this step.

        Raises:
          ValueError: the optimizer state is not that of the definition's transformation.
        """
        from optax_bridge.legacy import to_legacy  # with the correspondence: 50 ms

        return to_legacy(definition, self.params, self.opt_state, self.step)

    @classmethod
    def from_legacy_checkpoint(
        cls,
        path: Path | str,
        *,
        optimizer_def: "legacy_optim.OptimizerDef | optax.GradientTransformation | None" = None,
        apply_fn: Callable[..., PyTree] | None = None,
        exact: bool = True,
        part: str | None = None,
        sharding: PyTree = None,
        allow_nan: bool = False,
        **kwargs: Extra,
    ) -> Self:
        """Takes over a checkpoint of `flax.optim`: parameters, moments and step.

        Args:
          path: a file or folder of any known format; see `optax-bridge inspect`.
          optimizer_def: the definition that the checkpoint was written with. If None, the kind is
            inferred from the state's fields, if they fit only one. No file has hyper-parameters, so
            the learning rate must then be passed per call and all others are the legacy defaults.
            For T5X's Adafactor by axis, `optax_bridge.adafactor(path_rules=...)`.
          apply_fn: usually `model.apply`.
          exact: see `optax_bridge.from_legacy`.
          part: the '/'-joined path of the optimizer, if the checkpoint has several.
          sharding: a `jax.sharding.Sharding` for every leaf, a function `sharding(path, leaf)`
            that returns one, or the result of `optax_bridge.state_shardings`; leaves are placed
            one after another.
          allow_nan: let NaN and infinities in parameters and moments through.
          **kwargs: the subclass's own fields, in place of the checkpoint's. Other fields come from
            the checkpoint's entries: `batch_stats`, also from `model_state={"batch_stats": ...}`,
            `ema_params`, `rngs`, `dynamic_scale` (pass one here for its settings, which no file
            has), and any entry with the name of a field.

        Returns:
          A state of this class; its next step is the one that the saved optimizer would have taken.

        Raises:
          CheckpointError: it cannot be read, or is not of this optimizer.

        Warns:
          LeftOverWarning: the checkpoint has an entry without a field.
        """
        # Formats of checkpoints, which few programs need.
        from optax_bridge.checkpoints.read import read_checkpoint
        from optax_bridge.checkpoints.to_train_state import convert_tree, train_state

        check_optimizer_def(optimizer_def)
        read = read_checkpoint(path)
        converted = convert_tree(
            read.tree, optimizer_def, exact=exact, part=part, allow_nan=allow_nan, place=read.path
        )
        return train_state(cls, converted, apply_fn, sharding, kwargs, part, read.path)

    @classmethod
    def from_torch(
        cls,
        optimizer: Any,
        *,
        params: PyTree,
        names: "Path | str | Mapping[str, PyTree]",
        apply_fn: Callable[..., PyTree] | None = None,
        lr: ScalarOrSchedule | Sequence[ScalarOrSchedule] | None = None,
        step: int | None = None,
        exact: bool = True,
        **kwargs: Extra,
    ) -> Self:
        """Takes over a model and an optimizer of PyTorch: parameters, moments, step and groups.

        Args:
          optimizer: of `torch.optim`; groups become those of an `optax_bridge.multi_optimizer`. A
            parameter in none of them stays unchanged, as in PyTorch.
          params: the module that it trains, or its `state_dict()`.
          names: where each tensor goes in Flax: a names file, or its content as nested dicts.
          apply_fn: usually `model.apply`.
          lr: a schedule in place of the optimizer's own rate; with several groups, one for each.
            `ReduceLROnPlateau` is not noticed: add `optax.contrib.reduce_on_plateau`.
          step: steps taken, if the optimizer does not record them, as SGD does not.
          exact: use PyTorch's arithmetic; False: public Optax, where that is the same except for
            rounding.
          **kwargs: the subclass's own fields, in place of the model's, such as `batch_stats`.

        Returns:
          A state of this class, whose next step is the one that the optimizer would have taken.

        Raises:
          CheckpointError: the names leave a tensor out, or the optimizer is of another model.
          UnsupportedSetting: `exact=False`, and public Optax has no equivalent of these settings.
        """
        from optax_bridge.torch.checkpoints.in_memory import state_from_torch

        return state_from_torch(
            cls, optimizer, params, names, apply_fn, lr=lr, step=step, exact=exact, fields=kwargs
        )

    def to_legacy_checkpoint(
        self,
        path: Path | str,
        *,
        optimizer_def: "legacy_optim.OptimizerDef",
        part: str | None = None,
        force: bool = False,
    ) -> None:
        """Saves a checkpoint that programs of `flax.optim` restore, as Flax msgpack.

        Args:
          path: the file to write; it appears whole or not at all.
          optimizer_def: the definition that this state's transformation corresponds to.
          part: the path for the optimizer, such as "optimizer", next to the step and this state's
            other fields; None: the file holds only the optimizer.
          force: replace an existing checkpoint; anything else is never replaced.

        Raises:
          CheckpointError: the file exists, or the state is not of this optimizer.
        """
        # Formats of checkpoints, which few programs need.
        from optax_bridge.checkpoints.convert import to_legacy_checkpoint

        to_legacy_checkpoint(self, path, optimizer_def, part=part, force=force)

    def _transformation(self, grads: Updates) -> optax.GradientTransformation:
        """The one that takes these gradients, with boxes or without."""
        return boxes_handled(self.tx) if has_boxes((self.params, grads)) else self.tx

    def _split_arguments(
        self, grads: Updates, arguments: Mapping[str, Extra]
    ) -> tuple[dict[str, Extra], dict[str, Extra]]:
        """The arguments of a step that replace fields, and those for the transformation."""
        check_one_copy(self.step)
        check_gradients(grads, self.params)
        names = {field.name for field in dataclasses.fields(self)}
        replaced = {name: value for name, value in arguments.items() if name in names}
        extra = {name: value for name, value in arguments.items() if name not in names}
        check_no_text(extra, "apply_gradients, argument ")
        set_here = [name for name in replaced if name in _SET_BY_THE_STEP]
        if set_here:
            raise TypeError(
                f"apply_gradients sets {', '.join(set_here)} itself; to change it, use "
                "state.replace(...) before or after the step"
            )
        if not extra:
            return replaced, extra
        grads, params = _part_for_tx(grads), _part_for_tx(self.params)
        unused = unused_arguments(self._transformation(grads), grads, self.opt_state, params, extra)
        if unused:
            accepted = accepted_arguments(self.tx)
            taken = "not known" if accepted is None else ", ".join(sorted(accepted)) or "none"
            fields = sorted(names - {"tx", *_SET_BY_THE_STEP})
            takes_rate = _TAKES_RATE if "learning_rate" in unused else ""
            raise TypeError(
                f"apply_gradients got {', '.join(unused)}, which is neither a field of "
                f"{type(self).__name__} ({', '.join(fields)}) nor an argument that the "
                f"transformation takes per call ({taken}){takes_rate}"
            )
        return replaced, extra


fit_on_restore(TrainState)


def _has_overwritten(tree: PyTree) -> bool:
    """True if a collection is to be replaced by its gradient: Flax keeps its fp8 scales so."""
    return isinstance(tree, Mapping) and OVERWRITE_WITH_GRADIENT in tree


def _part_for_tx(tree: PyTree) -> Params:
    """The part of parameters or gradients that the transformation sees."""
    return tree["params"] if _has_overwritten(tree) else tree


def strong(leaf: Leaf) -> Leaf:
    """Returns a number or array as an array of strong type, as a step returns it."""
    if isinstance(leaf, bool | int | float | complex):
        return jnp.asarray(leaf, jnp.result_type(leaf))
    is_weak = isinstance(leaf, jax.Array) and getattr(leaf, "weak_type", False)
    return jnp.asarray(leaf, leaf.dtype) if is_weak else leaf


def _copied_where_shared(opt_state: OptState, params: Params) -> OptState:
    """The state without arrays that it shares with the parameters: both may be donated."""
    seen = {id(leaf) for leaf in jax.tree.leaves(params)}

    def copy_if_shared(leaf: Leaf) -> Leaf:
        if id(leaf) in seen and isinstance(leaf, jax.Array) and not isinstance(leaf, Tracer):
            return jnp.copy(leaf)
        seen.add(id(leaf))
        return leaf

    return jax.tree.map(copy_if_shared, opt_state)


def check_gradients(grads: Updates, params: Params) -> None:
    """Raises ValueError, naming the leaf, where gradients do not match the parameters."""
    if isinstance(params, optax.LookaheadParams):
        params = params.fast  # the slow ones have no gradients
    if jax.tree.structure(grads) != jax.tree.structure(params):
        # Either may have boxes that the other lacks.
        grads, params = unboxed(grads), unboxed(params)
    if jax.tree.structure(grads) == jax.tree.structure(params):
        pairs = zip(
            jax.tree_util.tree_leaves_with_path(grads), jax.tree.leaves(params), strict=True
        )
        check_no_text(grads, "grads")
        for (path, grad), param in pairs:
            if not _fits(jnp.shape(grad), jnp.shape(param)):
                raise ValueError(
                    f"grads{jax.tree_util.keystr(path)}: expected shape {jnp.shape(param)}, that "
                    f"of the parameter, found {jnp.shape(grad)}. {_why_not(grads, params)}"
                )
        return
    paths = [
        {jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(tree)}
        for tree in (grads, params)
    ]
    differing = sorted(paths[0] ^ paths[1])
    where = f"they differ at {', '.join(differing[:5])}" if differing else "the containers differ"
    raise ValueError(
        f"grads is not a tree like params: {where}. Expected {jax.tree.structure(params)}, found "
        f"{jax.tree.structure(grads)}. Differentiate with respect to state.params."
    )


def _why_not(grads: Updates, params: Params) -> str:
    """Returns the remedy for gradients whose shapes differ from the parameters'."""
    pairs = zip(jax.tree.leaves(grads), jax.tree.leaves(params), strict=True)
    if all(jnp.ndim(grad) and jnp.shape(grad)[1:] == jnp.shape(param) for grad, param in pairs):
        return (
            "Every gradient has an extra leading axis: they are replicated, and the state is "
            "not. Unreplicate them, flax.jax_utils.unreplicate(grads), or step under jax.pmap."
        )
    return "Differentiate with respect to state.params."


def _fits(grad: tuple[int, ...], param: tuple[int, ...]) -> bool:
    """True if a gradient has the parameter's shape, or is broadcast to it, as in flax.optim."""
    same = zip(reversed(grad), reversed(param), strict=False)
    return len(grad) <= len(param) and all(g in (1, p) for g, p in same)
