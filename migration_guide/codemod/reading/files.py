# pyright: strict
"""Finding files, telling at a glance which may matter, reading and writing them whole."""

import ast
import os
import re
import tokenize
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO
from pathlib import Path

from legacy_optim.gone.usage import PACKAGES, uses_gone_names
from optax_bridge._atomic import atomic_write, remove_abandoned

# What `migrate` itself leaves in a file where a person has to decide.
_COMMENT = b"# optax-bridge: "
_IN_TEXT = re.compile(rb"""["']flax\.optim(\.\w+)*\\?["']""")
# What a file of a program with flax.optim has, and what other files of the same program may have.
_IMPORTS = re.compile(
    rb"(?:^|\\n|[\"'])(?:\xef\xbb\xbf)?[ \t\"']*(?:(?:from|import)\s+flax\s*\.\s*optim\b"
    rb"|from\s+flax\s+import\s[^\n]*(?:\boptim\b|\*)"
    rb"|from\s+flax\s+import\s*\([^)]*\boptim\b|import\s+flax\b)"
    rb"|(?:\bimport_module|__import__)\(\s*\\?[\"']flax\.optim\b",
    re.MULTILINE,
)
# Other files of such a program: these always matter, ...
_IMPORTS_OF_PACKAGES = re.compile(rf"\b(?:import|from)\s+(?:{'|'.join(PACKAGES)})\b".encode())
_WEAK = re.compile(
    rb"\.apply_gradient\(|\bdef +apply_gradient\(|\.(?:itemset|newbyteorder|ptp|tostring)\("
    rb"|\b(?:restore_checkpoint|from_bytes|from_state_dict)\b|\bsave_checkpoint|\ba_m(?:in|ax) *="
    rb"|\b(?:c?[pP]ickle|cloudpickle|dill|joblib)\b"
    rb"|\b(?:msgpack_restore|to_state_dict|savez)"
)
# ... these only where an optimizer can get there by a field or a function of that program.
_READS = re.compile(rb"\.(?:target|state\.step|optimizer_def|replace)\b")
# Named like an optimizer and used like one: where nothing shows what it is, the user is told.
_NAMED = re.compile(rb"(?:\b|_)opt(?:im(?:izers?)?)?(?:[\d_]\w*)?\.(?:target|state\.step)\b")
# Left behind by a migration that was half done.
_HALF = re.compile(rb"(?<![\w.])(?:flax\.)?optim\.[A-Z]\w+")
_SKIPPED = {
    "node_modules", "__pycache__", "venv", "env", "site-packages", "dist-packages", "build", "dist",
    "__pypackages__",
}  # fmt: skip


@dataclass(frozen=True)
class File:
    """A file to look at."""

    path: Path
    group: str
    explicit: bool = False
    outside: bool = False


def walk(paths: Iterable[Path]) -> Iterator[File]:
    """Python files, notebooks and project files below some paths, sorted."""
    for path in paths:
        if path.is_file():
            yield File(path, str(path.parent), explicit=True)
            continue
        if not path.is_dir():
            raise FileNotFoundError(f"{path}: no such file or folder")
        installed = {"site-packages", "dist-packages"} & set(path.absolute().parts[-1:])
        for folder, names in _folders(path):
            for name in sorted(names):
                file = Path(folder, name)
                if is_code(file) and file.is_file():
                    # Installed packages are no program: what one file does says nothing of others.
                    group = str(file if installed else path)
                    yield File(file, group, outside=_leads_out(file, path))


def _folders(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Yields the folders that are looked at, sorted, each with the names of its files."""
    for folder, folders, names in os.walk(path):
        folders[:] = sorted(f for f in folders if f not in _SKIPPED and not f.startswith("."))
        yield folder, names


def _leads_out(file: Path, folder: Path) -> bool:
    return file.is_symlink() and not file.resolve().is_relative_to(folder.resolve())


def module_names(path: Path) -> tuple[str, ...]:
    """Returns the names that other files may import a file by: its own, and with its folders."""
    return (path.stem, *path.parts[-3:-1])


def is_code(path: Path) -> bool:
    """True if a file is Python or a notebook, by its name."""
    return path.suffix in (".py", ".pyi", ".ipynb")


def is_program(path: Path) -> bool:
    """True if a file that was named itself may be Python, a notebook or a project file."""
    if is_code(path):
        return True
    try:
        tree = ast.parse(path.read_bytes())
    except OSError:
        return True  # why it cannot be read is said when it is read
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return any(isinstance(node, ast.Import | ast.ImportFrom) for node in ast.walk(tree))


def uses_optim(data: bytes) -> bool:
    """True if a file uses flax.optim, or has comments of an earlier run."""
    # UTF-16, which Python does not read: that is said then.
    data = data.lstrip(b"\xff\xfe").replace(b"\0", b"")
    if _COMMENT in data:
        return True
    if _IN_TEXT.search(data):
        return True
    if _HALF.search(data) and (b"optax_bridge" in data or b"legacy_optim" in data):
        return True
    if b"flax" not in data or b"optim" not in data:
        return False
    modules = {match.group().split()[-1] for match in _IMPORTS.finditer(data)}
    if modules <= {b"flax"}:  # `import flax` alone, or as `import flax.linen`
        return bool(modules) and re.search(rb"\bflax\s*\.\s*optim\b", data) is not None
    return True


def is_migrated(data: bytes) -> bool:
    """True if a file uses this package, as an earlier run wrote it."""
    return b"optax_bridge" in data or b"legacy_optim" in data


def has_old_names(data: bytes) -> bool:
    """True if a file has names that are rewritten in any file of a program that uses flax.optim."""
    return _WEAK.search(data) is not None or _uses_gone_names(data)


@lru_cache(maxsize=1024)
def _uses_gone_names(data: bytes) -> bool:
    if data.lstrip()[:1] == b"{":  # a notebook: its cells may have magics, so it is looked into
        return _IMPORTS_OF_PACKAGES.search(data) is not None
    return uses_gone_names(data.decode("utf-8", "replace"))


def reads_optimizers(data: bytes, names: Collection[str]) -> bool:
    """True if a file may read an optimizer that it gets by one of some names."""
    if _READS.search(data) is None:
        return False
    if _NAMED.search(data) is not None:
        return True
    return any(os.fsencode(name) in data for name in names)


def names_all_of(data: bytes, several: Iterable[Collection[str]]) -> bool:
    """True if a file contains all words of one of several lists."""
    return any(all(os.fsencode(word) in data for word in words) for words in several)


def hands_on(data: bytes, homes: Mapping[str, Collection[str]]) -> bool:
    """True if a file imports a name of some modules: `from .own import Groups`, `own.Groups`."""
    for home, names in homes.items():
        start = f"{home} import "
        last = re.escape(os.fsencode(home.rpartition(".")[2]))
        has_names = any(os.fsencode(name) in data for name in names)
        if os.fsencode(start) in data and (has_names or os.fsencode(f"{start}*") in data):
            return True
        if has_names and re.search(rb"\bimport\b[^\n]*\b" + last + rb"\b", data):
            return True
    return False


def decode(data: bytes) -> tuple[str, str]:
    """Text with its line endings as they are, and the encoding that the file declares."""
    encoding, _ = tokenize.detect_encoding(BytesIO(data).readline)
    try:
        return data.decode(encoding), encoding
    except LookupError as error:  # such as `rot13`, which is no encoding of text
        raise SyntaxError(str(error)) from None


def write(path: Path, data: bytes) -> None:
    """Replaces a file's content in one step; its mode stays, and links stay links."""
    path = path.resolve()
    if not os.access(path, os.W_OK):
        raise PermissionError(f"{path} is write-protected")
    mode = path.stat().st_mode & 0o7777
    with atomic_write(path) as tmp_path:
        tmp_path.write_bytes(data)
        os.chmod(tmp_path, mode)


def remove_unfinished(paths: Iterable[Path]) -> None:
    """Removes the remains of killed runs, as `remove_abandoned` does, in all these folders."""
    homes: set[Path] = set()
    for path in paths:
        homes |= {path.parent} if path.is_file() else {Path(folder) for folder, _ in _folders(path)}
    for home in sorted(homes):
        remove_abandoned(home)
