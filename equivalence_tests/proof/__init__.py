"""Proofs that two optimizers are the same for all inputs, and certificates of them.

The public names are listed in `__init__.pyi`; a module is imported when a name of it is first used.

A map, in the order of a proof:

- What is compared: `traced_sides` (a side as jaxprs), `symbols` (hyper-parameters), `unknown`
  (functions of which nothing is known), `known_relations` (the correspondence's state maps).
- Bit for bit: `programs` reads a jaxpr into a `graph` of `nodes`; `rewriting`, `rewriting_shapes`
  and `folding` are the rules, which hold in IEEE arithmetic for every input.
- Over the reals: `reals` and `scalar_functions` read the graph as functions of real numbers, with
  indices (`indexing`), in the `algebra`: `atoms`, `quotients` of polynomials, `conditions`,
  `powers`, `sums`. `decimals` and `dtypes` say what constants and integers stand for.
- The induction: `world` (both sides in one graph), `equality` of two nodes (with `random_values` as
  hints), `induction`, and what a relation may say: `guessed_relations`, `counters`,
  `sign_analysis`.
- The other way: `counterexample`, by an `interpreter` of jaxprs in exact ball arithmetic
  (`interpreter_rules`, `exact_operations`).
- Rounding: `bounds`, by branch and bound (`roundoff`) over `intervals` with `rounding_rules`.
- What comes of it: `prover`, `result`, `certificate`, `checker` (which knows `normal_forms`, and
  nothing of the prover), the `table` of all claims. `fuzz` tries to have something false proved.
"""

import lazy_loader

from optax_bridge.installed import require

require("prove", __name__)
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
del lazy_loader, require
