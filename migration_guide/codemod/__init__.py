"""Rewrites programs of `flax.optim` for Optax: one rule a file in `rules/`.

`analysis` finds out which expressions hold an optimizer, the rules consult it and rewrite one node
each, `rewrite` applies them to a file and checks the result, `driver` goes over files, and
`command` is `optax-bridge migrate`.
"""
