# pyright: strict
"""Source text: whether it is Python, and which names it leaves open."""

import builtins
import re
import symtable
import warnings

import libcst as cst

# About half a minute. The longest module of CPython's library has 250 KB.
_LARGEST = 600_000
_LONG_STRING = re.compile(rb"[\"'][^\"'\n]{1000,}[\"']")  # an image in base64 costs nothing
_BUILTIN = frozenset(dir(builtins))
_MODULE_NAMES = frozenset(
    [
        "__file__",
        "__name__",
        "__doc__",
        "__spec__",
        "__package__",
        "__path__",
        "__loader__",
        "__builtins__",
        "__debug__",
        "__annotations__",
        "__class__",
        "get_ipython",
        "display",
    ]
)


class TooLargeError(ValueError):
    """A file has so many expressions that following all of them takes minutes."""


def parse(code: str) -> cst.Module:
    """A module as a tree."""
    # Before LibCST, whose parser overflows the stack where Python's says what is wrong.
    _table(code)
    size = len(code.encode()) - sum(map(len, _LONG_STRING.findall(code.encode())))
    if size > _LARGEST:
        raise TooLargeError(
            f"{size:,} bytes of code, and more than {_LARGEST:,} are not looked through: "
            "move data into a file of its own"
        )
    try:
        return cst.parse_module(code)
    except cst.ParserSyntaxError as error:
        raise SyntaxError(error.message, ("<module>", error.raw_line, None, None)) from None


def undefined_names(code: str) -> set[str]:
    """Names that a module reads somewhere and that nothing in it defines."""
    table = _table(code)
    defined = {s.get_name() for s in table.get_symbols() if s.is_assigned() or s.is_imported()}
    used: set[str] = set()

    def visit(scope: symtable.SymbolTable) -> None:
        for symbol in scope.get_symbols():
            if scope.get_type() == "module" or symbol.is_global():
                if symbol.is_referenced():
                    used.add(symbol.get_name())
                if symbol.is_declared_global() and symbol.is_assigned():
                    defined.add(symbol.get_name())
        for child in scope.get_children():
            visit(child)

    visit(table)
    namespaces = {child.get_name() for child in table.get_children()}
    return used - defined - namespaces - _BUILTIN - _MODULE_NAMES


def _table(code: str) -> symtable.SymbolTable:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such as those about escapes in strings
        try:
            return symtable.symtable(code, "<module>", "exec")
        except ValueError as error:  # a null byte
            raise SyntaxError(str(error), ("<module>", None, None, None)) from None
        except MemoryError:  # the parser's stack is full, before it has seen that a bracket is open
            raise RecursionError from None
