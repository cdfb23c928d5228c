# pyright: strict
"""Folders of checkpoints become absolute where they are handed to Orbax.

Before:

    checkpoints.save_checkpoint("run", optimizer, step)
    checkpoints.save_checkpoint(folder, optimizer, step)

After:

    def absolute_folder(folder):
        ...

    checkpoints.save_checkpoint(os.path.abspath("run"), optimizer, step)
    checkpoints.save_checkpoint(absolute_folder(folder), optimizer, step)

Flax now passes the folder to Orbax, which takes only absolute paths: a relative one is an error at
the first save. A folder known only at run time may also be the address of a store, gs://..., which
`os.path.abspath` would turn into a folder. The functions of this package take either.

Orbax restores arrays committed to one device, and `jax.pmap` refuses such a key or rate: where the
program has one, `jax.device_get` turns it into the NumPy arrays that Flax gave.
"""

import libcst as cst

from migration_guide.codemod.reading.tree import place_of, with_argument
from migration_guide.codemod.rules.restoring import is_rewritten, reads_nothing_old
from migration_guide.codemod.writing import constants
from migration_guide.codemod.writing.context import Context, Expression, New

_CALLS = ("save_checkpoint", "save_checkpoint_multiprocess", "restore_checkpoint")
_HOME = "flax.training.checkpoints."
_READ = "jax.device_get"
_MESSAGE = (
    "Flax now passes the folder to Orbax, which takes only absolute paths: use os.path.abspath(...)"
)
_SOURCE = '''
def {name}(folder):
    """Returns the folder as an absolute path, or the address of a store unchanged."""
    return folder if "://" in str(folder) else os.path.abspath(folder)
'''


def rewrite_call(context: Context, original: cst.Call, updated: cst.Call) -> New:
    """See the module."""
    name = context.name(original.func)
    if not _is_handed_on(context, name, original):
        return None
    new = _make_absolute(context, original, updated)
    is_read = any(
        isinstance(a, cst.Call) and context.name(a.func) == _READ
        for a in context.ancestors(original)
    )
    if name != f"{_HOME}restore_checkpoint" or not context.analysis.project.uses_pmap or is_read:
        return new
    return cst.Call(context.reference(_READ), [cst.Arg(new or updated)])


def _make_absolute(context: Context, original: cst.Call, updated: cst.Call) -> cst.Call | None:
    place = place_of(original, 0, "ckpt_dir")
    if place is None:
        context.remark(original, _MESSAGE)
        return None
    folder = original.args[place].value
    if constants.is_absolute(context.analysis, folder):
        return None
    context.needed.add("os")
    if constants.text(context.analysis, folder) is not None:
        absolute = cst.parse_expression("os.path.abspath")
    else:
        absolute = cst.Name(context.function(constants.ABSOLUTE_FOLDER, _SOURCE))
    return with_argument(updated, place, cst.Call(absolute, [cst.Arg(updated.args[place].value)]))


def rewrite_reference(context: Context, original: Expression, _: Expression) -> None:
    """The function handed on: `functools.partial(save_checkpoint, folder)`."""
    if context.call_of(original) is None and _is_handed_on(context, context.name(original), None):
        context.remark(original, _MESSAGE)


def _is_handed_on(context: Context, name: str, call: cst.Call | None) -> bool:
    if not name.startswith(_HOME) or name.removeprefix(_HOME) not in _CALLS:
        return False
    return not is_rewritten(context, name, call) or reads_nothing_old(context)
