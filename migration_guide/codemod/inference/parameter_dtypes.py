# pyright: strict
"""Tells if a program's parameters may be in half precision, as far as its sources show.

JAX and Flax make parameters in float32 unless they are told otherwise. So a program in which
nothing names half precision, whose dtypes are all written out, and whose models are in sight, has
parameters in float32; of any other it is not known.
"""

import ast
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from migration_guide.codemod.inference.kinds import Sign
from migration_guide.codemod.reading.imports import is_without_jax

_SUSPECT = re.compile(
    r"bfloat16|float16|bf16|[fF][pP]?16|[hH]alf|[mM]ixed|[dD][tT][yY][pP][eE]|\bjmp\b|DynamicScale"
    r"|\bgetattr\b|\.create\b|\bastype\b"
)
_HALF = re.compile(
    r"bfloat_?16|float16|(^|_)bf16|(^|_)fp?16|half_?precision|mixed_?precision|^jmp$|^DynamicScale$",
    re.IGNORECASE,
)
_HALF_NAMES = frozenset({"bf16", "bfloat16", "f16", "float16", "fp16", "half"})
_FULL_NAMES = frozenset(
    {"bool", "bool_", "bytes", "complex", "complex128", "complex64", "double", "float", "float32",
     "float64", "float_", "int", "int16", "int32", "int64", "int8", "int_", "object", "object_",
     "single", "str", "string", "uint16", "uint32", "uint64", "uint8", "None"}
)  # fmt: skip
_FULL_CODE = re.compile(r"[?bBhHiIlLqQpPfdgFDGOSU]|[iu][1248]|f[48]|c8|c16")  # NumPy's letters
_MAKE_DTYPES = ("jax.numpy.dtype", "numpy.dtype")
_ARRAY_MODULES = ("jax.numpy", "numpy", "tensorflow")
_CONFIG = re.compile(
    r"(^|_)(args|cfg|conf|configs?|flags|hparams|hps|hyperparam(eter)?s|options|opts|settings)$",
    re.IGNORECASE,
)
_DTYPE = re.compile(r"dtype", re.IGNORECASE)
_LOADS = ("load", "loads", "msgpack_restore", "read_pickle")
# Modules that make parameters in float32, or none at all.
_KNOWN = frozenset(
    {"PIL", "absl", "chex", "clu", "cv2", "distrax", "einops", "flax", "gin", "gym", "haiku", "jax",
     "jaxlib", "legacy_optim", "matplotlib", "ml_collections", "numpy", "optax", "optax_bridge",
     "orbax", "pandas", "scipy", "sklearn", "tensorboardX", "tensorflow", "tensorflow_datasets",
     "tensorflow_probability", "torch", "torchvision", "tqdm", "wandb", "yaml"}
) | sys.stdlib_module_names  # fmt: skip


def signs(sources: Mapping[Path, str], modules: Iterable[str] = ()) -> tuple[Sign, ...]:
    """Returns the first sign of half precision in each file of a program; none means float32."""
    files = [
        _File(path, tree)
        for path, text in sources.items()
        if _SUSPECT.search(text) and (tree := _parse(text)) is not None
    ]
    program = _Program([file for file in files if not file.trains_without_jax], frozenset(modules))
    by_file = (program.first_sign(file) for file in program.files)
    return tuple(sorted(sign for sign in by_file if sign is not None))


def _parse(text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


class _File:
    """The imports and bindings of one file, by names alone."""

    def __init__(self, path: Path, tree: ast.Module):
        self.path = path
        self.nodes = list(ast.walk(tree))
        self.imported: dict[str, str] = {}
        self.bound: dict[str, list[ast.expr]] = {}
        for node in self.nodes:
            self._import(node)
            self._bind(node)

    @property
    def trains_without_jax(self) -> bool:
        """True if the file imports another library, and nothing of JAX."""
        roots = {name.partition(".")[0] for name in self.imported.values()}
        return not roots & {"flax", "jax", ""} and any(map(is_without_jax, roots))

    def name(self, node: ast.expr) -> str:
        """The dotted name that an expression was imported as, or ""."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name) or node.id not in self.imported:
            return ""
        return ".".join([self.imported[node.id], *reversed(parts)])

    def _import(self, node: ast.AST) -> None:
        if isinstance(node, ast.Import):
            for alias in node.names:
                root = alias.name.partition(".")[0]
                self.imported[alias.asname or root] = alias.name if alias.asname else root
        elif isinstance(node, ast.ImportFrom):
            home = "." * bool(node.level) + (f"{node.module}." if node.module else "")
            for alias in node.names:
                self.imported[alias.asname or alias.name] = f"{home}{alias.name}"

    def _bind(self, node: ast.AST) -> None:
        match node:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    self._bind_target(target, value)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self._bind_target(target, value)
            case ast.NamedExpr(target=target, value=value):
                self._bind_target(target, value)
            case ast.For(target=target, iter=value) | ast.comprehension(target=target, iter=value):
                self._bind_target(target, value)
            case ast.keyword(arg=str() as name, value=value):
                self.bound.setdefault(name, []).append(value)
            case ast.arguments():
                positional = [*node.posonlyargs, *node.args]
                defaults = zip(reversed(positional), reversed(node.defaults), strict=False)
                for arg, value in [*defaults, *zip(node.kwonlyargs, node.kw_defaults, strict=True)]:
                    if value is not None:
                        self.bound.setdefault(arg.arg, []).append(value)
            case _:
                pass

    def _bind_target(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Tuple | ast.List):
            for element in target.elts:
                self._bind_target(element, value)
        elif isinstance(target, ast.Name | ast.Attribute):
            self.bound.setdefault(_last(target), []).append(value)


class _Program:
    """The files of a program that may show the dtype of its parameters."""

    def __init__(self, files: list[_File], modules: frozenset[str]):
        self.files = files
        self._modules = modules
        self._bound: dict[str, list[tuple[_File, ast.expr]]] = {}
        self._functions: dict[str, list[tuple[_File, ast.FunctionDef]]] = {}
        self._taking: dict[str, list[tuple[_File, ast.FunctionDef]]] = {}  # by a parameter's name
        self._classes: dict[str, list[tuple[_File, ast.ClassDef]]] = {}
        self._makes: dict[ast.FunctionDef, str] = {}  # `__init__` -> the name of its class
        self._calls: dict[str, list[tuple[_File, ast.Call]]] = {}
        for file in files:
            for name, values in file.bound.items():
                self._bound.setdefault(name, []).extend((file, value) for value in values)
            for node in file.nodes:
                self._register(file, node)

    def _register(self, file: _File, node: ast.AST) -> None:
        match node:
            case ast.FunctionDef(name=name, args=args):
                self._functions.setdefault(name, []).append((file, node))
                for arg in (*args.posonlyargs, *args.args):
                    self._taking.setdefault(arg.arg, []).append((file, node))
            case ast.ClassDef(name=name, body=body):
                self._classes.setdefault(name, []).append((file, node))
                methods = (part for part in body if isinstance(part, ast.FunctionDef))
                self._makes |= {method: name for method in methods if method.name == "__init__"}
            case ast.Call(func=func):
                self._calls.setdefault(_last(func), []).append((file, node))
            case _:
                pass

    def first_sign(self, file: _File) -> Sign | None:
        """The first place of a file that shows or hides half precision."""
        places = sorted(
            (node.lineno, _source_of(node))
            for node in file.nodes
            if isinstance(node, ast.expr | ast.alias | ast.keyword | ast.arg)
            and (self._names_half(file, node) or self._hides_dtype(file, node))
        )
        places = places or [
            (node.lineno, f"{_source_of(node)}, whose dtype is not in sight")
            for node in self._unseen_parameters(file)
        ]
        return Sign(str(file.path), *places[0]) if places else None

    def _names_half(self, file: _File, node: ast.AST) -> bool:
        match node:
            case ast.Constant(value=str() as text):
                return text in _HALF_NAMES
            case ast.Attribute(attr="half"):
                return file.name(node).startswith(_ARRAY_MODULES)
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
                return bool(_HALF.search(name))
            case ast.keyword(arg=str() as name):
                return bool(_HALF.search(name))
            case ast.alias(name=name):
                return any(map(_HALF.search, name.split(".")))
            case _:
                return False

    def _hides_dtype(self, file: _File, node: ast.AST) -> bool:
        """True if a dtype comes from where it cannot be seen."""
        match node:
            case ast.Attribute(attr=name, value=holder) if _DTYPE.search(name):
                return bool(_CONFIG.search(_last(holder)))
            case ast.Subscript(value=holder, slice=ast.Constant(value=str() as name)):
                return bool(_DTYPE.search(name) and _CONFIG.search(_last(holder)))
            case ast.keyword(arg=str() as name, value=value) if name.endswith("dtype"):
                return not self._is_full(file, value, set())
            case ast.Call(func=ast.Name(id="getattr"), args=[module, name, *_]):
                is_literal = isinstance(name, ast.Constant)
                return not is_literal and file.name(module) in _ARRAY_MODULES
            case ast.Call(
                func=ast.Attribute(attr="get"), args=[ast.Constant(value=str() as name), *_]
            ):
                return bool(_DTYPE.search(name) and _CONFIG.search(_last(_holder(node))))
            case ast.Call(func=ast.Attribute(attr="astype"), args=[value, *_]):
                return not self._is_full(file, value, set())
            case ast.Call(func=func, args=[value, *_]) if file.name(func) in _MAKE_DTYPES:
                return not self._is_full(file, value, set())
            case _:
                return False

    def _is_full(self, file: _File, node: ast.expr, seen: set[str]) -> bool:
        """True if a dtype is surely none of half precision."""
        match node:
            case ast.Constant(value=value):
                text = str(value).lstrip("<>=|")
                return text in _FULL_NAMES or bool(_FULL_CODE.fullmatch(text))
            case ast.IfExp(body=body, orelse=orelse):
                return all(self._is_full(file, part, seen) for part in (body, orelse))
            case ast.BoolOp(values=values):
                return all(self._is_full(file, part, seen) for part in values)
            case ast.Call(func=func, args=args):
                if _last(func) in ("promote_types", "result_type"):
                    return True
                is_cast = _last(func) in ("canonicalize_dtype", "dtype") and bool(args)
                return is_cast and all(self._is_full(file, arg, seen) for arg in args)
            case ast.Name() | ast.Attribute():
                return self._is_full_name(file, node, seen)
            case _:
                return False

    def _is_full_name(self, file: _File, node: ast.Name | ast.Attribute, seen: set[str]) -> bool:
        name = _last(node)
        if name in _FULL_NAMES:
            return True
        if isinstance(node, ast.Attribute) and _last(node.value) not in ("self", "cls"):
            # Of an array, which has come to its dtype somewhere else.
            return name == "dtype" and not _CONFIG.search(_last(node.value))
        if name in seen:
            return True
        seen.add(name)
        values = [*self._bound.get(name, ())]
        for _, function in self._taking.get(name, ()):
            values += self._arguments_for(function, name)
        if not values and not _DTYPE.search(name):
            return False
        return all(self._is_full(f, value, seen) for f, value in values)

    def _unseen_parameters(self, file: _File) -> Iterator[ast.expr]:
        """Yields what makes parameters and is of a module that is not given, or reads a file."""
        waiting: list[tuple[_File, ast.AST]] = [
            (file, arg)
            for home, call in self._calls.get("create", ())
            if home is file and isinstance(call.func, ast.Attribute)
            for arg in [*call.args[:1], *(k.value for k in call.keywords if k.arg == "target")]
        ]
        seen: set[ast.AST] = set()
        while waiting:
            home, node = waiting.pop()
            if node in seen:
                continue
            seen.add(node)
            if isinstance(node, ast.ClassDef):
                yield from (base for base in node.bases if self._is_unseen(home, base))
            if isinstance(node, ast.Call) and self._is_unseen(home, node.func):
                yield node
            else:
                waiting += self._origins(home, node)

    def _is_unseen(self, file: _File, called: ast.expr) -> bool:
        name = file.name(called)
        if not name:
            return False
        parts = name.split(".")
        if parts[0] in _KNOWN:
            return parts[-1] in _LOADS
        return self._modules.isdisjoint(parts) and bool(parts[:-1])

    def _origins(self, file: _File, node: ast.AST) -> Iterator[tuple[_File, ast.AST]]:
        """Yields the sources of an expression's value."""
        match node:
            case ast.ClassDef():
                calls = (n for n in ast.walk(node) if isinstance(n, ast.Call))
                yield from ((file, call) for call in calls if _last(call.func)[:1].isupper())
            case ast.Name(id=name):
                yield from ((file, value) for value in file.bound.get(name, ()))
                for home, function in self._taking.get(name, ()):
                    if home is file:
                        yield from self._arguments_for(function, name)
            case ast.Attribute(attr=name, value=holder):
                yield file, holder
                yield from ((file, value) for value in file.bound.get(name, ()))
            case ast.Call(func=func, args=args):
                for home, function in self._functions.get(_last(func), ()):
                    returns = [n.value for n in ast.walk(function) if isinstance(n, ast.Return)]
                    yield from ((home, value) for value in returns if value is not None)
                yield from self._classes.get(_last(func), ())
                if not isinstance(func, ast.Name):
                    yield file, func
                if file.name(func):
                    yield from ((file, arg) for arg in args)
            case ast.Subscript(value=value) | ast.Starred(value=value):
                yield file, value
            case ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.BoolOp(values=parts):
                yield from ((file, part) for part in parts)
            case ast.Dict(values=parts):
                yield from ((file, part) for part in parts)
            case ast.IfExp(body=body, orelse=orelse):
                yield from ((file, body), (file, orelse))
            case _:
                return

    def _arguments_for(
        self, function: ast.FunctionDef, name: str
    ) -> Iterator[tuple[_File, ast.expr]]:
        """Yields the arguments that calls of a function pass for a parameter."""
        names = [arg.arg for arg in [*function.args.posonlyargs, *function.args.args]]
        index = names.index(name) - (names[0] in ("self", "cls"))
        for file, call in self._calls.get(self._makes.get(function, function.name), ()):
            if 0 <= index < len(call.args):
                yield file, call.args[index]


def _holder(call: ast.Call) -> ast.expr:
    return call.func.value if isinstance(call.func, ast.Attribute) else call.func


def _last(node: ast.expr) -> str:
    """`c` of `a.b.c`."""
    return getattr(node, "attr", "") or getattr(node, "id", "")


def _source_of(node: ast.AST) -> str:
    """The source of an expression, as far as one line has room for it."""
    text = ast.unparse(node) if isinstance(node, ast.expr | ast.keyword) else _last_name(node)
    line = text.splitlines()[0]
    return line if len(line) <= 60 else f"{line[:57]}..."


def _last_name(node: ast.AST) -> str:
    return getattr(node, "name", "") or getattr(node, "arg", "")
