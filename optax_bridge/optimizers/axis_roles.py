"""The axes that Adafactor reduces over: by size, by name, by path or by the parameter's box."""

import dataclasses
import enum
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, ParamSpec, Self

import numpy as np
from flax import struct
from flax.core import meta
from jax import Array

from optax_bridge.exact.leaf_rule import LeafInfo

P = ParamSpec("P")


class Role(enum.StrEnum):
    """The role of an axis in Adafactor.

        >>> tx = optax_bridge.adafactor(0.1, path_rules={"kernel": (Role.COLUMN, Role.ROW)})
        >>> tx.init({"kernel": jnp.ones((4, 6))}).v_row["kernel"].shape
        (6,)
        >>> box = nn.Partitioned(jnp.ones((3, 4, 5)), ("layers", "embed", "mlp"))
        >>> rules = {"layers": "batch", "embed": "row", "mlp": "column"}
        >>> state = optax_bridge.adafactor(0.1, axis_rules=rules).init({"kernel": box})
        >>> state.v_row["kernel"].names, state.v_col["kernel"].value.shape
        (('layers', 'embed'), (3, 5))

    Attributes:
      ROW: the row statistic keeps it, the column statistic is a mean over it.
      COLUMN: the reverse. Several axes may act together as rows or as columns.
      BATCH: an axis along which parameters are stacked, such as layers of a scan: every index has
        its own statistics, scale and clipping threshold.
      NONE: both statistics keep it.
    """

    ROW = "row"
    COLUMN = "column"
    BATCH = "batch"
    NONE = "none"


# Pairs of an axis's name and its role; a mapping or, where order is wanted, pairs.
AxisRules = Mapping[str, Role | str] | Sequence[tuple[str, Role | str]]
# Pairs of a regular expression on '/'-joined paths and a role for each axis.
PathRules = Mapping[str, Sequence[Role | str]] | Sequence[tuple[str, Sequence[Role | str]]]


class Factors(NamedTuple):
    """The axes of one parameter by role; those left are of role none."""

    rows: tuple[int, ...] = ()
    columns: tuple[int, ...] = ()
    batch: tuple[int, ...] = ()

    def without(self, dropped: tuple[int, ...], rank: int) -> tuple[int, ...]:
        """Returns the axes that an array of this rank has left when some are reduced."""
        return tuple(axis for axis in range(rank) if axis not in dropped)


class FactoredPartitioned(meta.Partitioned):
    """`nn.Partitioned` that carries the role of each axis for `optax_bridge.adafactor` as well.

    `nn.scan` and `nn.vmap` add their axis with the role that `metadata_params` holds under `ROLE`,
    "batch" if it holds none.

    Attributes:
      roles: a `Role`, or its name, for each axis.
    """

    roles: tuple[Role | str | None, ...] = struct.field(default=(), pytree_node=False)

    def add_axis(self, index: int, params: dict[Any, Any]) -> Self:
        """The box with one more axis, as `AxisMetadata.add_axis`."""
        roles = list(self.roles)
        roles.insert(index, params.get(ROLE, Role.BATCH))
        return super().add_axis(index, params).replace(roles=tuple(roles))  # type: ignore[return-value]

    def remove_axis(self, index: int, params: dict[Any, Any]) -> Self:
        """The box with one axis less, as `AxisMetadata.remove_axis`."""
        roles = list(self.roles)
        del roles[index]
        return super().remove_axis(index, params).replace(roles=tuple(roles))  # type: ignore[return-value]


ROLE = "factor_role"  # key in the `metadata_params` of nn.scan and nn.vmap


def with_roles(
    init: Callable[P, Array], names: Sequence[str | None], roles: Sequence[Role | str]
) -> Callable[P, FactoredPartitioned]:
    """An initializer whose parameter carries names and roles of its axes.

        >>> zeros = nn.initializers.zeros
        >>> init = with_roles(zeros, ("embed", "mlp"), (Role.ROW, "column"))
        >>> box = init(jax.random.key(0), (4, 6))
        >>> box.names, box.roles
        (('embed', 'mlp'), (<Role.ROW: 'row'>, <Role.COLUMN: 'column'>))
        >>> optax_bridge.adafactor(0.1).init({"kernel": box}).v_row["kernel"].value.shape
        (4,)

    Args:
      init: the initializer.
      names: for each axis, as `nn.with_partitioning` takes them.
      roles: for each axis.

    Returns:
      The initializer.

    Raises:
      TypeError: names or roles are one text.
      ValueError: a role is not one of `Role`.
    """
    for sequence, of in ((names, "name or None"), (roles, "role")):
        if isinstance(sequence, str):  # whose letters would be taken for the axes'
            raise TypeError(f"with_roles: expected a {of} for each axis, found {sequence!r}")
    checked = tuple(_role(role, "with_roles") for role in roles)

    def init_box(*args: P.args, **kwargs: P.kwargs) -> FactoredPartitioned:
        return FactoredPartitioned(init(*args, **kwargs), tuple(names), roles=checked)

    return init_box


@dataclass(frozen=True)
class Planner:
    """Assigns a role to each axis of a parameter."""

    factored: bool
    min_dim_size_to_factor: int
    by_name: Mapping[str, Role]
    by_path: Sequence[tuple[re.Pattern[str], tuple[Role, ...]]]
    as_in_t5x: bool = False

    @classmethod
    def of(
        cls,
        factored: bool,
        min_dim_size_to_factor: int,
        axis_rules: AxisRules | None,
        path_rules: PathRules | None,
        as_in_t5x: bool,
    ) -> Self:
        """Checks the rules."""
        by_path = [
            (_compile(p), _roles(roles, f"path rule {p!r}")) for p, roles in _pairs(path_rules)
        ]
        by_name = _checked_axis_rules(axis_rules)
        return cls(factored, min_dim_size_to_factor, by_name, by_path, as_in_t5x)

    def __call__(self, leaves: list[LeafInfo]) -> list[Factors]:
        """The axes of each parameter by role."""
        plan = [self.factors(leaf) for leaf in leaves]
        _check_all_used(leaves, self.by_name, self.by_path)
        return plan

    def factors(self, leaf: LeafInfo) -> Factors:
        """The axes of one parameter by role."""
        stated = _stated_roles(leaf, self.by_path)
        named = None if not self.by_name or leaf.axes is None else _named_roles(leaf, self.by_name)
        if stated is not None and named is not None and stated[1] != named:
            raise _error(
                leaf, f"two rules collide: {stated[0]} says {_join(stated[1])}, the axis rules "
                f"say {_join(named)}. Remove one of them, or make them agree."
            )  # fmt: skip
        roles = stated[1] if stated is not None else named
        ignored = self.as_in_t5x and len(leaf.shape) <= 2 and Role.BATCH not in (roles or ())
        if roles is None or (ignored and leaf.roles is None):
            by_size = _largest_two(leaf.shape, self.min_dim_size_to_factor)
            return (by_size if self.factored else None) or Factors()
        axes = {role: tuple(i for i, r in enumerate(roles) if r == role) for role in Role}
        rows, columns = axes[Role.ROW], axes[Role.COLUMN]
        if stated is not None and bool(rows) != bool(columns):
            raise _error(
                leaf, f"a role is left over: {stated[0]} gives {_join(roles)}, which has "
                f"{'row' if rows else 'column'} without its counterpart. Name a row and a column "
                "axis, or neither."
            )  # fmt: skip
        # By names alone, a bias (mlp,) has columns only: there is nothing to factor.
        pair = (rows, columns) if self.factored and rows and columns else ((), ())
        return Factors(*pair, axes[Role.BATCH])

    def differing_in_t5x(self, leaves: list[LeafInfo]) -> list[LeafInfo]:
        """The parameters that T5X would factor differently by the same rules."""
        t5x = dataclasses.replace(self, as_in_t5x=True)
        return [leaf for leaf in leaves if self.factors(leaf) != t5x.factors(leaf)]


def _largest_two(shape: tuple[int, ...], min_size: int) -> Factors | None:
    """The rule of `flax.optim`: the two longest axes, if both are long enough."""
    if len(shape) < 2:
        return None
    # Stable, as NumPy sorted such short arrays in the days of flax.optim: of equally long axes
    # the last one counts as the largest. With AVX-512 the default sort of today may swap them.
    *_, second, largest = (int(axis) for axis in np.argsort(shape, kind="stable"))
    return None if shape[second] < min_size else Factors((second,), (largest,))


def _stated_roles(
    leaf: LeafInfo, by_path: Sequence[tuple[re.Pattern[str], tuple[Role, ...]]]
) -> tuple[str, tuple[Role, ...]] | None:
    """The roles that a box or an expression gives this very parameter, and who says so."""
    path = "/".join(leaf.names)
    rules = [(f"path rule {p.pattern!r}", roles) for p, roles in by_path if p.search(path)]
    if leaf.roles is not None:
        # A box of FactoredPartitioned may have had an axis narrowed away: None is no role.
        roles = tuple(
            Role.NONE if r is None else _role(r, f"box of {leaf.path}") for r in leaf.roles
        )
        rules.insert(0, ("its box", roles))
    for who, roles in rules:
        if len(roles) != len(leaf.shape):
            raise _error(
                leaf, f"{who} fits no axis: it has {len(roles)} roles, {_join(roles)}, for "
                f"{len(leaf.shape)} axes. Give one role for each axis."
            )  # fmt: skip
        if roles != rules[0][1]:
            raise _error(
                leaf, f"two rules collide: {rules[0][0]} says {_join(rules[0][1])}, {who} says "
                f"{_join(roles)}. Narrow one of them."
            )  # fmt: skip
    return rules[0] if rules else None


def _named_roles(leaf: LeafInfo, by_name: Mapping[str, Role]) -> tuple[Role, ...]:
    roles = []
    for name in leaf.axes or ():
        if name is None:
            roles.append(Role.NONE)
        elif isinstance(name, str) and name in by_name:
            roles.append(by_name[name])
        else:
            raise _error(
                leaf, f"no rule for axis {name!r}. Add it to axis_rules, which has "
                f"{', '.join(by_name)}; \"none\" keeps an axis in both statistics."
            )  # fmt: skip
    return tuple(roles)


def _checked_axis_rules(rules: AxisRules | None) -> dict[str, Role]:
    checked: dict[str, Role] = {}
    for name, value in _pairs(rules):
        role = _role(value, f"axis rule {name!r}")
        if checked.setdefault(name, role) != role:
            raise ValueError(
                f"adafactor: two axis rules collide: {name!r} is {checked[name]} and {role}. Leave "
                "one of them out."
            )
    return checked


def _check_all_used(
    leaves: Iterable[LeafInfo],
    by_name: Mapping[str, Role],
    by_path: Sequence[tuple[re.Pattern[str], tuple[Role, ...]]],
) -> None:
    leaves = list(leaves)
    names = {name for leaf in leaves for name in leaf.axes or ()}
    idle = [repr(name) for name in by_name if name not in names]
    paths = ["/".join(leaf.names) for leaf in leaves]
    idle += [repr(p.pattern) for p, _ in by_path if not any(p.search(path) for path in paths)]
    if idle:
        shown = "; ".join(f"{leaf.path} {leaf.shape} {leaf.axes or 'unnamed'}" for leaf in leaves)
        raise ValueError(
            f"adafactor: rule {', '.join(idle)} fits no axis of any parameter. The parameters, "
            f"with their shapes and axes: {shown}. Axis rules need parameters in boxes with names "
            "(nn.with_partitioning); path rules match the '/'-joined path."
        )


def _roles(roles: Any, where: str) -> tuple[Role, ...]:
    """A role for each axis; not a single string, whose letters would be taken for roles."""
    if isinstance(roles, str):
        raise TypeError(f"adafactor: {where}: expected a role for each axis, found {roles!r}")
    return tuple(_role(role, where) for role in roles)


def _role(role: object, where: str) -> Role:
    if role not in [*Role]:
        raise ValueError(
            f"adafactor: {where}: expected a role of {', '.join(Role)}, found {role!r}"
        )
    return Role(role)


def _compile(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ValueError(
            f"adafactor: path rule {pattern!r}: expected a regular expression: {error}"
        ) from None


def _pairs(rules: Any) -> list[tuple[Any, Any]]:
    return list(rules.items()) if isinstance(rules, Mapping) else list(rules or ())


def _join(roles: Sequence[Role]) -> str:
    return "(" + ", ".join(str(role) for role in roles) + ")"


def _error(leaf: LeafInfo, text: str) -> ValueError:
    return ValueError(
        f"adafactor: {leaf.path} of shape {leaf.shape} with axes {leaf.axes or 'unnamed'}: {text}"
    )
