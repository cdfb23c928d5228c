"""Rewrites programs of `flax.optim` for Optax: one rule a file in `rules/`.

`analysis` finds out which expressions hold an optimizer, from how values move (`flow`) and how they
are used (`use`), with what other files of the program say (`exports`, `project`). The rules consult
it and rewrite one node each; `registry` puts them into order, `rewrite` applies them to a file and
checks the result, `driver` goes over files, and `command` is `optax-bridge migrate`.
"""
