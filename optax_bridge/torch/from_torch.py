"""From an optimizer of PyTorch, as text or as an object, to its Optax equivalent."""

import warnings
from collections.abc import Sequence
from typing import Any, Protocol

import optax

import legacy_optim
from legacy_optim.deprecation import describing
from optax_bridge._text import listing
from optax_bridge.checkpoints.definitions import path_pattern
from optax_bridge.correspondence import TORCH, Described, entries_by_class
from optax_bridge.correspondence.expression import ExpressionError, parse
from optax_bridge.correspondence.recipe import Source
from optax_bridge.legacy import from_legacy
from optax_bridge.metadata.trees import OptState, Params
from optax_bridge.optimizers.groups import groups_of
from optax_bridge.optimizers.selectors import ParamLeaves
from optax_bridge.torch.definition import ScalarOrSchedule, TorchOptimizer
from optax_bridge.torch.schedules import CYCLED

Group = str | legacy_optim.ModelParamTraversal  # a pattern of paths, or what selects them


class _OptimizerOfTorch(Protocol):
    param_groups: list[dict[str, Any]]


OptimizerOrText = str | _OptimizerOfTorch | TorchOptimizer


def from_torch(
    optimizer: OptimizerOrText,
    *,
    exact: bool = True,
    lr: ScalarOrSchedule | Sequence[ScalarOrSchedule] | None = None,
    groups: Sequence[Group] | None = None,
) -> optax.GradientTransformationExtraArgs:
    """Returns the Optax equivalent of a `torch.optim` optimizer. PyTorch need not be installed.

        >>> tx = from_torch("torch.optim.AdamW(lr=1e-3, weight_decay=0.05)")
        >>> tx.hyper_params["weight_decay"]
        0.05

    Args:
      optimizer: the constructor call as text, which is parsed and never evaluated; or the optimizer
        itself, whose settings are read. `ReduceLROnPlateau` leaves no mark in it, so that is not
        noticed: add `optax.contrib.reduce_on_plateau`.
      exact: this project's transformation in PyTorch's arithmetic. False: public Optax, where
        that is identical up to rounding.
      lr: the learning rate in place of the optimizer's own, usually a schedule; or a sequence with
        one for each group.
      groups: if groups have different settings, a pattern of paths for each,
        `("*/kernel", "*/bias")`, or a traversal, that selects its parameters. A parameter in no
        group stays unchanged.

    Returns:
      The transformation; see `optax_bridge.from_legacy`.

    Raises:
      ExpressionError: the text is not a constructor call, or a setting is not a literal.
      TypeError: `optimizer` is not an optimizer of PyTorch.
      ValueError: groups differ, and `groups` does not say which parameters are in each; or a
        scheduler is attached without `lr`. `init` raises it for a group that selects no parameter,
        or, with as many parameters as the optimizer has tensors, more or fewer than its own.
      UnsupportedSetting: `exact=False`, and public Optax has no equivalent of these settings.
    """
    definition = torch_definition(optimizer, lr=lr, groups=groups)
    tx = from_legacy(definition, exact)
    if not isinstance(definition, legacy_optim.MultiOptimizer):
        return tx
    tensors = [len(group["params"]) for group in getattr(optimizer, "param_groups", ())]

    def init(params: Params) -> OptState:
        _check_groups(definition.traversals, params, tensors)
        return tx.init(params)

    return tx._replace(init=init)


def _check_groups(selectors: Sequence[Group], params: Params, tensors: Sequence[int]) -> None:
    """Refuses groups that leave parameters where PyTorch's move them."""
    names = ["/" + "/".join(path) for path in ParamLeaves(params).names]
    groups = [group.indices for group in groups_of(selectors, params)] if names else []
    missing = [name for index, name in enumerate(names) if not any(index in g for g in groups)]
    is_whole = sum(tensors) == len(names)  # each parameter is then one tensor of PyTorch
    for number, indices in enumerate(groups):
        if len(indices) != tensors[number] if is_whole else not indices:
            expected = f"{tensors[number]}, as PyTorch's group has" if is_whole else "1 or more"
            raise ValueError(
                f"groups[{number}]: expected {expected}, found {len(indices)} of the {len(names)} "
                f"parameters. In no group: {listing(missing) or 'none'}"
            )


def torch_definition(
    optimizer: OptimizerOrText,
    *,
    lr: ScalarOrSchedule | Sequence[ScalarOrSchedule] | None = None,
    groups: Sequence[Group] | None = None,
) -> legacy_optim.OptimizerDef:
    """The definition of an optimizer of `torch.optim`; the arguments are those of `from_torch`."""
    parts = [_from_text(optimizer)] if isinstance(optimizer, str) else _from_object(optimizer)
    of_torch = getattr(optimizer, "param_groups", ())
    if lr is None and any("initial_lr" in group for group in of_torch):
        raise ValueError(
            "a scheduler is attached to the optimizer and changes its rate from step to step: "
            "pass lr=optax_bridge.torch.from_torch_schedule(scheduler), or a number for a constant "
            "rate"
        )
    if any("base_momentum" in group for group in of_torch):
        raise ValueError(f"the optimizer's scheduler: {CYCLED}")
    rates = list(lr) if isinstance(lr, Sequence) else [lr] * len(parts)
    if len(rates) != len(parts):
        raise ValueError(f"lr: expected one for each of {len(parts)} groups, found {len(rates)}")
    definitions = [_definition(part, rate) for part, rate in zip(parts, rates, strict=True)]
    first, *others = (parts[0].entry.settings(definition) for definition in definitions)
    differing = [name for name in first if any(other[name] != first[name] for other in others)]
    if not differing and groups is None:
        return definitions[0]
    if groups is None or len(groups) != len(parts):
        count = "none" if groups is None else f"{len(groups)}"
        raise ValueError(
            f"the optimizer has {len(parts)} groups of parameters, which differ in "
            f"{', '.join(differing) or 'nothing'}, and PyTorch does not know the parameters' "
            'names. Say which are in each: groups=("*/kernel", "*/bias"), one pattern of paths for '
            f"each, in their order; found {count}"
        )
    selectors = [path_pattern(group) if isinstance(group, str) else group for group in groups]
    pairs = zip(selectors, definitions, strict=True)
    with describing():
        return legacy_optim.MultiOptimizer(*pairs)


def _from_text(text: str) -> Described:
    described = parse(text, TORCH)
    for name, value in described.settings.items():
        if isinstance(value, Source):
            raise ExpressionError(
                f"{text!r}: {name}={value.text} is not a value; write a number: nothing is "
                "evaluated. A learning rate may be given as lr="
            )
    return described


def _from_object(optimizer: Any) -> list[Described]:
    """A definition, or each group of an optimizer of PyTorch, which is not imported here."""
    cls = type(optimizer)
    name, groups = cls.__name__, getattr(optimizer, "param_groups", None)
    entry = entries_by_class(TORCH).get(name)
    if entry is not None and isinstance(optimizer, TorchOptimizer):
        return [Described(entry, entry.settings(optimizer))]
    if not isinstance(groups, list) or not cls.__module__.startswith("torch.optim"):
        raise TypeError(
            "optimizer: expected a constructor call as text, such as 'torch.optim.AdamW(lr=1e-3)', "
            f"or an optimizer of torch.optim, found {cls.__module__}.{name}"
        )
    if entry is None:
        raise TypeError(
            f"torch.optim.{name}: {TORCH.without_entry.get(name, 'it has no entry here')}"
        )
    described: list[Described] = []
    for group in groups:
        settings = {
            hp.legacy: _plain(group[hp.legacy]) for hp in entry.hyper_params if hp.legacy in group
        }
        extra_arguments = {key: "True" for key in entry.extra_arguments if group.get(key) is True}
        described.append(Described(entry, entry.defaults() | settings, extra_arguments))
    return described


def _definition(described: Described, lr: Any) -> TorchOptimizer:
    for remark in described.remarks():
        warnings.warn(remark, stacklevel=4)
    rate = {} if lr is None else {described.entry.rate: lr}
    return described.entry.legacy(**{**described.settings, **rate})


def _plain(value: Any) -> Any:
    """A setting as Python has it: a tensor of one number is that number."""
    if isinstance(value, tuple | list):
        return tuple(map(_plain, value))
    return value.item() if hasattr(value, "item") else value
