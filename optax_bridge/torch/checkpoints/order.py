# pyright: strict
"""The parameters of a model by their index in its optimizer: a file has no more of the latter.

The parameters of a group come in the order of the model, as a rule. Shapes tell whether that can
be, and whether it is the only way; where they do not, a person says it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from optax_bridge._text import brief, listing
from optax_bridge.checkpoints.errors import CheckpointError, Place

_Shape = tuple[int, ...]
_MOST = 20_000  # ways that are followed at a time
_BY_ALPHABET = (
    "shapes that fit two orders: the model's, and that of programs which sort the names of a group"
)
_Trail = tuple[int, "_Trail"] | None  # the index that each name got, the last one first


@dataclass(frozen=True)
class Order:
    """The names of an optimizer's parameters."""

    names: Mapping[int, str]
    doubt: str = ""

    def name(self, index: int) -> str:
        """The name of a parameter, for messages."""
        return self.names.get(index, f"parameter {index}")


def parameter_order(
    groups: Sequence[Sequence[int]],
    shapes: Mapping[int, _Shape | None],
    names: Mapping[str, _Shape],
    listed_order: Sequence[str] | None,
    place: Place,
) -> Order:
    """Finds which name each index is."""
    indices = [index for group in groups for index in group]
    if listed_order is not None:
        return Order(_as_listed(indices, shapes, names, listed_order, place))
    ways = _ways(groups, shapes, names)
    if not ways:
        return Order({}, "shapes that fit no order of the model's parameters")
    if len(ways) > 1:
        return Order(ways[0], "shapes that fit several orders of the model's parameters")
    if len(groups) > 1 and any(shapes.values()):
        by_alphabet = _ways(groups, shapes, {name: names[name] for name in sorted(names)})
        if by_alphabet and by_alphabet[0] != ways[0]:
            return Order(ways[0], _BY_ALPHABET)
    return Order(ways[0])


def _as_listed(
    indices: Sequence[int],
    shapes: Mapping[int, _Shape | None],
    names: Mapping[str, _Shape],
    listed_order: Sequence[str],
    place: Place,
) -> dict[int, str]:
    unknown = [name for name in listed_order if name not in names]
    repeated = len({*listed_order}) < len(listed_order)
    if unknown or repeated or len(listed_order) != len(indices):
        problem = f"no {listing(unknown)} in the model" if unknown else f"{len(listed_order)} names"
        raise CheckpointError(
            f"{place}, the optimizer's parameters",
            f"the names of {len(indices)} of the model's parameters, each once", problem,
            "The order lists them as the optimizer was given them, group after group.",
        )  # fmt: skip
    by_index = dict(zip(indices, listed_order, strict=True))
    for index, name in by_index.items():
        if shapes.get(index) not in (None, names[name]):
            raise CheckpointError(
                f"{place}, {name}", f"a state of shape {list(names[name])}",
                brief(list(shapes[index] or ())), "Mend the order in the names file.",
            )  # fmt: skip
    return by_index


def _ways(
    groups: Sequence[Sequence[int]],
    shapes: Mapping[int, _Shape | None],
    names: Mapping[str, _Shape],
) -> list[dict[int, str]]:
    """Up to two ways to give each index a name, each group's in the order of the names."""
    spare = len(names) - sum(map(len, groups))
    if spare < 0:
        return []
    # How far each group is -> up to two trails that lead there.
    frontier: dict[tuple[int, ...], list[_Trail]] = {(0,) * len(groups): [None]}
    for count, shape in enumerate(names.values()):
        after: dict[tuple[int, ...], list[_Trail]] = {}
        for done, trails in frontier.items():
            if count - sum(done) < spare:
                after.setdefault(done, []).extend((-1, trail) for trail in trails)
            for number, group in enumerate(groups):
                position = done[number]
                if position == len(group) or shapes.get(group[position]) not in (None, shape):
                    continue
                key = (*done[:number], position + 1, *done[number + 1 :])
                after.setdefault(key, []).extend((group[position], trail) for trail in trails)
        if len(after) > _MOST:
            return []
        frontier = {key: trails[:2] for key, trails in after.items()}
    return [_names_along(trail, [*names]) for trail in frontier.get(tuple(map(len, groups)), [])]


def _names_along(trail: _Trail, names: Sequence[str]) -> dict[int, str]:
    by_index: dict[int, str] = {}
    for name in reversed(names):
        assert trail is not None
        index, trail = trail
        if index >= 0:
            by_index[index] = name
    return dict(sorted(by_index.items()))
