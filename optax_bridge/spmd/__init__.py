# pyright: strict
"""Training on many devices and hosts, composed from configs.

`config` describes things before they exist, `module` gives them names, state and random keys,
`layer` holds parameters, and the trainer runs them. Nothing here is imported by `import
optax_bridge`.
"""

from optax_bridge.cli.installed import require

require("trainer", __name__)
