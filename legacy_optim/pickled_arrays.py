# pyright: strict
"""Arrays that JAX of `flax.optim`'s time has pickled are read by today's.

A pickle names the function that makes the array again, and hands it the array's type as a dict. The
function has moved since jax 0.3, and the type has lost an entry, `named_shape`, since jax 0.4.33:
either alone keeps an optimizer that was pickled then from being read today. Pickles of jax 0.2 hold
NumPy's arrays.
"""

import sys
import types
from collections.abc import Callable

# What an array's type can be given today.
_KNOWN = frozenset({"weak_type"})
_ARRAY, _MAKES = "jax._src.array", "_reconstruct_array"
_OLD_ARRAY, _OLD_MAKES = "jax._src.device_array", "reconstruct_device_array"


def read_old_arrays() -> Callable[[], object]:
    """Makes today's JAX, which is imported already, read them; nothing else changes."""
    module = sys.modules.get(_ARRAY)
    today = getattr(module, _MAKES, None)
    if module is None or today is None or _OLD_ARRAY in sys.modules:
        return lambda: None

    def make(fun: object, args: object, arr_state: object, aval_state: dict[str, object]) -> object:
        aval_state = {key: value for key, value in aval_state.items() if key in _KNOWN}
        return today(fun, args, arr_state, aval_state)

    # Arrays that are pickled from now on name the function, so that it goes by its name.
    make.__module__, make.__name__, make.__qualname__ = _ARRAY, _MAKES, _MAKES
    setattr(module, _MAKES, make)
    old = types.ModuleType(_OLD_ARRAY)
    setattr(old, _OLD_MAKES, make)
    sys.modules[_OLD_ARRAY] = old

    def undo() -> None:
        setattr(module, _MAKES, today)
        sys.modules.pop(_OLD_ARRAY, None)

    return undo
