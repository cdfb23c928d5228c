"""Rewrites programs of `flax.optim` for Optax: one rule a file in `rules/`.

Read (`reading`: files, notebooks, scopes and names), infer (`inference`: which expressions hold an
optimizer, with what other files of the program say), rewrite (`dispatch` hands nodes to `rules`,
which ask, say and add through `writing.context`), place (`writing.place`: imports and functions),
write. `rewrite` takes a module through that and checks the result, `driver` goes over files, and
`migration_guide.command` is `optax-bridge migrate`.
"""
