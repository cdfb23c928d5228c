"""NumPy names of `flax.optim`'s time that NumPy has removed, and what answers now.

A table for `legacy_optim.shim`, which imports it after NumPy: nothing here imports JAX.
"""

import numpy as np

# Module -> name -> what answers where the module itself no longer does, and where no public name
# of today is known to `legacy_optim.gone`.
NAMES: dict[str, dict[str, object]] = {
    "numpy": {
        "NINF": -np.inf,
        "PZERO": 0.0,
        "NZERO": -0.0,
        "alen": len,
        "asfarray": lambda a, dtype=np.float64: np.asarray(a, dtype),
        "asscalar": lambda a: a.item(),
        "in1d": lambda ar1, ar2, **kwargs: np.isin(np.ravel(ar1), ar2, **kwargs),
        "issubsctype": np.issubdtype,
        "msort": lambda a: np.sort(a, axis=0),
        "typeDict": np.sctypeDict,
    },
}
