# pyright: strict
"""Leaves `from flax.optim import *` next to another `import *` to a person, and its uses too.

Before:

    from flax.optim import *
    from helpers import *
    optimizer = Adam(1e-3).create(params)

After:

    # optax-bridge: it is unclear which names come from import * ...
    from flax.optim import *
    from helpers import *
    optimizer = Adam(1e-3).create(params)

Where flax.optim's is the only one that can have brought a name, the name is rewritten as if it were
imported by itself. Otherwise nothing of the file is: half of it would be worse.
"""

import libcst as cst

from migration_guide.codemod.reading import imports
from migration_guide.codemod.reading.names import is_legacy
from migration_guide.codemod.writing.context import Context, Line

_MESSAGE = (
    "it is unclear which names come from import *: import them by name, and run this again; "
    "until then nothing in this file is rewritten"
)


def rewrite_statement(context: Context, original: Line, _: Line) -> None:
    """See the module."""
    if not context.analysis.names.unclear_star:
        return
    for node in original.body:
        if isinstance(node, cst.ImportFrom):
            module = imports.star(node)
            if module == "flax" or (module and is_legacy(module)):
                context.by_hand(node, _MESSAGE)
