"""NumPy names of `flax.optim`'s time that NumPy has removed, and what answers now.

A table for `legacy_optim.shim`, which imports it after NumPy: nothing here imports JAX.
"""

from typing import Any

import numpy as np

# Module -> name -> what answers where the module itself no longer does.
NAMES: dict[str, dict[str, Any]] = {
    "numpy": {
        "float": float,
        "int": int,
        "object": object,
        "complex": complex,
        "str": str,
        "long": int,
        "unicode": str,
        "bool8": np.bool_,
        "float_": np.float64,
        "complex_": np.complex128,
        "unicode_": np.str_,
        "string_": np.bytes_,
        "object0": np.object_,
        "Inf": np.inf,
        "Infinity": np.inf,
        "PINF": np.inf,
        "NINF": -np.inf,
        "NaN": np.nan,
        "NAN": np.nan,
        "infty": np.inf,
        "PZERO": 0.0,
        "NZERO": -0.0,
        "alltrue": np.all,
        "sometrue": np.any,
        "product": np.prod,
        "cumproduct": np.cumprod,
        "round_": np.round,
        "row_stack": np.vstack,
        "asfarray": lambda a, dtype=np.float64: np.asarray(a, dtype),
        "asscalar": lambda a: a.item(),
    },
}
MODULES: dict[str, Any] = {}
GONE: dict[str, str] = {}
