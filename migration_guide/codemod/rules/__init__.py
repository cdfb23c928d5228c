"""The rules, one a file. A file in this folder that defines one of the handlers below is a rule.

- `rewrite_call(context, original, updated)`: for each call.
- `rewrite_attribute(context, original, updated)`: for each `a.b`.
- `rewrite_reference(context, original, updated)`: for each imported name that is used, `Adam` or
  `optim.Adam`.
- `rewrite_comparison(context, original, updated)`: for each `a is b`, `a == b`, `a in b`.
- `rewrite_class(context, original, updated)`: for each class statement.
- `rewrite_statement(context, original, updated)`: for each simple statement; may return several.
- `rewrite_module(context, original, updated)`: for the module, after all else.

A handler returns the new node, or None where the rule does not apply. `original` is the
node that the analysis knows, `updated` the same after inner rewrites. `registry` lists the
constants that a rule may declare.
"""
