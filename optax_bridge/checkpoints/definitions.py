"""From a text or from a state's fields to the legacy definition that the state belongs to."""

import contextlib
import fnmatch
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import numpy as np
import optax

import legacy_optim
from legacy_optim.deprecation import describing
from optax_bridge._text import brief
from optax_bridge.checkpoints.errors import CheckpointError, Place
from optax_bridge.checkpoints.locate import shapes_of
from optax_bridge.checkpoints.trees import is_array
from optax_bridge.correspondence import Described, UnsupportedSetting
from optax_bridge.correspondence.expression import ExpressionError, parse
from optax_bridge.correspondence.recipe import Call, Source, build
from optax_bridge.exact.leaf_rule import LeafRule, describe_leaves
from optax_bridge.exact.transformation import ExactTransformation
from optax_bridge.metadata.paths import Names
from optax_bridge.metadata.trees import Leaf, OptState, Params, PyTree
from optax_bridge.optimizers.axis_roles import Planner

# A legacy definition, or a transformation with a state like one's: Adafactor by axis.
Definition = legacy_optim.OptimizerDef | optax.GradientTransformation


def parse_definition(expression: str) -> legacy_optim.OptimizerDef:
    """The definition for `"Adam(learning_rate=1e-3)"`; the text is parsed, never evaluated."""
    return build(_call(parse(expression), expression))


def parse_definitions(expressions: Sequence[str]) -> dict[str, legacy_optim.OptimizerDef]:
    """The definitions of several optimizers of one checkpoint, by their paths in it."""
    definitions = {}
    for text in expressions:
        head, equals, rest = text.partition("=")
        path, call = (head.strip().strip("/"), rest) if equals and "(" not in head else ("", text)
        if path in definitions:
            raise ExpressionError(
                f"{text!r}: {path or 'the checkpoint'} has one already; give each of several "
                'optimizers with its path, "actor=Adam(1e-3)"'
            )
        definitions[path] = parse_definition(call)
    return definitions


def _call(value: object, expression: str, name: str = "") -> PyTree:
    if isinstance(value, Described):
        args: tuple[object, ...] = ()
        settings: dict[str, Any] = dict(value.settings)
        for hp in value.entry.hyper_params:
            if hp.variadic:
                args = _groups(settings.pop(hp.legacy), expression)
        kwargs = {key: _call(item, expression, key) for key, item in settings.items()}
        return Call(f"legacy_optim.{value.entry.legacy.__name__}", args, kwargs)
    if isinstance(value, Source):
        if name == "learning_rate":
            return None
        raise ExpressionError(f"{expression!r}: {name}={value.text} is not a value: write a number")
    return value


def _groups(groups: Iterable[object], expression: str) -> tuple[object, ...]:
    arguments = []
    for group in groups:
        match group:  # the parser lets code pass in place of any of it
            case (str(pattern), Described() as inner):
                arguments.append((Source(pattern, path_pattern(pattern)), _call(inner, expression)))
            case _:
                raise ExpressionError(
                    f"{expression!r}: each group of a MultiOptimizer is a pair of a pattern of "
                    'paths and an optimizer here, e.g. ("*/kernel", Adam(1e-3)); a traversal is '
                    "code, and no code is run. Or use TrainState.from_legacy_checkpoint in Python."
                )
    return tuple(arguments)


def path_pattern(pattern: str) -> legacy_optim.ModelParamTraversal:
    """A traversal of the leaves whose '/'-joined path, `/encoder/kernel`, fits a pattern."""
    return legacy_optim.ModelParamTraversal(lambda path, _: fnmatch.fnmatchcase(path, pattern))


@describing()
def focus_of(
    definition: legacy_optim.OptimizerDef, fields: Sequence[tuple[Names, Leaf, PyTree]]
) -> legacy_optim.OptimizerDef:
    """The definition of a state with unmatched leaves, from that of the matched leaves."""
    has_state = {"/" + "/".join(path): state is not None for path, _, state in fields}
    if isinstance(definition, legacy_optim.MultiOptimizer) or all(has_state.values()):
        return definition
    traversal = legacy_optim.ModelParamTraversal(lambda path, _: has_state.get(path, False))
    return legacy_optim.MultiOptimizer((traversal, definition))


def shape_of_state(
    init: Callable[[Params], OptState], params: Params, place: Place, name: str
) -> OptState:
    """The state that a definition or a transformation makes for parameters, without data."""
    wide = (np.float64, np.complex128)
    is_wide = any(is_array(leaf) and leaf.dtype in wide for leaf in jax.tree.leaves(params))
    try:
        with jax.enable_x64(True) if is_wide else contextlib.nullcontext():
            return jax.eval_shape(init, shapes_of(params))
    except UnsupportedSetting:
        raise
    except (ValueError, TypeError, LookupError) as error:
        raise CheckpointError(
            place, f"parameters that {name} takes", brief(str(error), 300),
            "Give the optimizer that wrote the checkpoint. A checkpoint does not name axes: "
            "name them with path_rules.",
        ) from error  # fmt: skip


def check_axes_of_t5x(
    tx: optax.GradientTransformation, opt_state: OptState, params: Params, place: Place
) -> None:
    """Checks that T5X has the statistics of a transformation along the same axes."""
    differing = differing_in_t5x(tx, opt_state, shapes_of(params))
    if differing:
        raise CheckpointError(
            f"{place}, {brief(differing)}", "statistics along the axes that the rules name",
            "T5X's checkpoints, where a rule without a batch axis has no say over parameters of "
            "rank 2 and below",
            "To continue as T5X did, pass optax_bridge.adafactor(..., as_in_t5x=True).",
        )  # fmt: skip


def differing_in_t5x(
    tx: optax.GradientTransformation, opt_state: OptState, params: Params
) -> list[str]:
    """The paths of the parameters whose statistics T5X has along other axes."""
    groups = groups_of(tx, opt_state, params)
    rule = getattr(tx.init, "__self__", None)
    if isinstance(rule, LeafRule) and isinstance(rule.plan, Planner):
        return [leaf.path for leaf in rule.plan.differing_in_t5x(describe_leaves(params))]
    return [path for group in groups for path in differing_in_t5x(*group)]


def groups_of(
    tx: optax.GradientTransformation, opt_state: OptState, params: Params
) -> Sequence[tuple[optax.GradientTransformation, OptState, Params]]:
    """The groups of a `multi_optimizer`: transformation, state and parameters of each."""
    if not isinstance(tx, ExactTransformation) or "hyper_params" not in tx.hyper_params:
        return ()
    return tx.parts(opt_state, params) if tx.parts is not None else ()
