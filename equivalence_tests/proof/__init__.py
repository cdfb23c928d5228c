"""Proofs that two optimizers are the same for all inputs.

The public names are listed in `__init__.pyi`; a module is imported when a name of it is first used.

A map, in the order of a proof:

- `reading`: a side as jaxprs (`sides`), hyper-parameters and uninterpreted functions as symbols
  (`symbols`), and from a jaxpr to a graph (`programs`).
- `bits`: the graph, under rewrite rules that hold in IEEE arithmetic for every input.
- `primitives`: the semantics of each primitive, one entry each: over the reals, its sign, its
  rewrite rules.
- `reals`: the graph as functions of real numbers in normal form, by an `algebra` of quotients.
- `induction`: both sides in one graph (`world`), the equality of two nodes, invariants of states,
  and relations between the states of both sides.
- `interpreter`: a jaxpr equation by equation, on numbers of its dtype or on balls.
- `counterexample`: inputs on which the sides differ.
- `prover`, `result` and `scope` (what a verdict holds for); the `table` of all `claims`.
"""

import lazy_loader

from optax_bridge.cli.installed import require

require("prove", __name__)
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
del lazy_loader, require
