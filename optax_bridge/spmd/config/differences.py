# pyright: strict
"""In what two configs differ."""

from optax_bridge.spmd.config.base import ConfigBase
from optax_bridge.spmd.config.walking import Children, leaf_text


class _Absent:
    def __repr__(self) -> str:
        return "(absent)"


ABSENT = _Absent()


class ConfigDiff(dict[str, tuple[object, object]]):
    """Pairs of values by key; `ABSENT` for what one config lacks. As text, a line for each."""

    def __str__(self) -> str:
        return "\n".join(
            f"{key}: {leaf_text(before)} -> {leaf_text(after)}"
            for key, (before, after) in self.items()
        )


def diff(a: ConfigBase, b: ConfigBase) -> ConfigDiff:
    """Returns the differences of b from a, by the keys of `debug_string`.

    Values of other types differ, even if they are equal, as 1 and 1.0 are. Containers that differ
    in type, and empty ones, have entries of their own.

    Example:
      >>> from optax_bridge.spmd.layer import Linear
      >>> cfg = Linear.default_config()
      >>> print(diff(cfg, cfg.clone(input_dim=3, bias=False)))
      bias: True -> False
      input_dim: REQUIRED -> 3
    """
    before, after = _flat(a), _flat(b)
    differences = ConfigDiff()
    for key in [*before, *(key for key in after if key not in before)]:
        old, new = before.get(key, ABSENT), after.get(key, ABSENT)
        if type(old) is not type(new) or not (old is new or bool(old == new)):
            differences[key] = old, new
    return differences


def _flat(cfg: ConfigBase) -> dict[str, object]:
    """Leaves by key, and the type of every container; of an empty one the container itself."""
    flat: dict[str, object] = {}

    def enter(key: str, value: object, children: Children | None) -> Children | None:
        if isinstance(value, ConfigBase) or children:
            flat[key] = type(value)
        elif children is not None:
            flat[key] = value
        return children

    cfg.visit(flat.__setitem__, enter_fn=enter)
    return flat
