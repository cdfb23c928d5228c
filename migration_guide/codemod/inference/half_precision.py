# pyright: strict
"""The first word of half precision in a program, by a rule that can be told in a sentence.

The tokens of a program, and of the files that it imports (below the migrated folders; for a file
that is named itself, in its folder), are looked through for a word of half precision, and for a
dtype (`dtype=`, `.astype(`, `jnp.zeros(3, dtype)`) that is neither a full-precision, whole-number
or bool name nor another array's `.dtype`. The `.dtype` of something named like settings
(`cfg.dtype`, `flags.dtype`) is no array's: it comes from a file or a flag. `half` and `mixed` are
words of English, too: alone they count as an attribute (`np.half`), a function, a switch
(`half=True`) or a string that is no key, not as a variable.
"""

import contextlib
import functools
import os
import re
import tokenize
from collections.abc import Callable, Iterator, Mapping
from io import StringIO
from pathlib import Path

from migration_guide.codemod.inference.kinds import Sign
from migration_guide.codemod.reading.files import decode

_WORDS = frozenset({"bf16", "bfloat16", "dynamicscale", "float16", "fp16", "half", "jmp", "mixed"})
# Method -> the place of a dtype among its arguments.
_PLACES = {"arange": 3, "astype": 0, "full": 2} | dict.fromkeys(
    ("array", "asarray", "empty", "ones", "zeros"), 1
)
_SUSPECT = re.compile(
    rf"{'|'.join([*_WORDS, *_PLACES])}|dtype|[\"'](?:e|[<>=|]?f2)[\"']", re.IGNORECASE
)
_FULL = re.compile(  # a string with the quote that it begins with
    r"(?:'|(?:\w+\.)*)(?:bool_?|bytes|complex(64|128)?|double|float(32|64|_)?|u?int(8|16|32|64|_)?"
    r"|None|object_?|str|single)|'[<>=|]?([?bBhHiIlLqQpPfdgFDGOSU]|[iu][1248]|f[48]|c8|c16)"
)
_SETTINGS = re.compile(
    r"(?:\b|_)(?:args|cfg|conf(?:igs?)?|flags|hparams|hps|options|opts|settings)(?:_\w+)?"
    r"(?:\.\w+|\[[^]]*\]|\(\))*\.\w*",
    re.IGNORECASE,
)
_LAYOUT = (tokenize.COMMENT, tokenize.NL, tokenize.INDENT, tokenize.DEDENT)
_IMPORT = re.compile(
    r"^[ \t]*(?:from[ \t]+([.\w]+)[ \t]+)?import[ \t]+(\([^)]*\)|[^\n#]*)", re.MULTILINE
)


def signs(sources: Mapping[Path, str]) -> dict[Path, Sign]:
    """File -> the sign that decides for it: its own, or else one of the programs it belongs to."""
    first_signs = {
        path: sign for path, text in sources.items() if (sign := _first_sign(path, text))
    }
    programs = _programs(sources) if first_signs else []
    deciding: dict[Path, Sign] = {}
    for program in programs:
        if program.isdisjoint(first_signs):
            continue
        first = min(first_signs[path] for path in program & first_signs.keys())
        for path in program:
            deciding.setdefault(path, first_signs.get(path, first))
    return deciding


def _first_sign(path: Path, text: str) -> Sign | None:
    tokens = list(_tokens(text)) if _SUSPECT.search(text) else []
    for index, token in enumerate(tokens):
        if _says_half(tokens, index) or _leaves_open(tokens, index):
            return Sign(str(path), token.start[0], token.line.strip().splitlines()[0][:80])
    return None


def _tokens(text: str) -> Iterator[tokenize.TokenInfo]:
    """Yields the tokens of code, strings unquoted, up to the first syntax error."""
    try:
        for token in tokenize.generate_tokens(StringIO(text).readline):
            if token.type not in _LAYOUT:
                yield token._replace(string=token.string.strip("'\""))
    except (SyntaxError, tokenize.TokenError):
        return


def _says_half(tokens: list[tokenize.TokenInfo], index: int) -> bool:
    text, is_string = tokens[index].string, tokens[index].type == tokenize.STRING
    before, after, value = (_text(tokens, index + i) for i in (-1, 1, 2))
    if is_string and text.lstrip("<>=|") in ("e", "f2"):
        return text != "e" or (before, after) == (",", ")")  # as a dtype: a call's last argument
    if is_string:
        text = text.lstrip("-").replace("-", "_")  # an option, `--half-precision`
    if text.lower() in ("half", "mixed"):
        is_key = (before, after) in (("{", ":"), (",", ":"), ("[", "]"))
        is_switch = after == "=" and value in ("True", "False")
        return not is_key if is_string else before == "." or after == "(" or is_switch
    return text.isidentifier() and not _WORDS.isdisjoint(text.lower().split("_"))


def _text(tokens: list[tokenize.TokenInfo], index: int) -> str:
    return tokens[index].string if 0 <= index < len(tokens) else ""


def _leaves_open(tokens: list[tokenize.TokenInfo], index: int) -> bool:
    """True for a dtype that is not surely in full precision, or comes from settings."""
    name, before, after = (_text(tokens, index + i) for i in (0, -1, 1))
    if name.endswith("dtype") and after != "=":
        token = tokens[index]
        return any(m.end() == token.end[1] for m in _SETTINGS.finditer(token.line))
    if name.endswith("dtype"):
        return not _is_full(tokens, index + 2, 0)
    is_call = before == "." and after == "(" and name in _PLACES
    return is_call and not _is_full(tokens, index + 2, _PLACES[name])


def _is_full(tokens: list[tokenize.TokenInfo], start: int, place: int) -> bool:
    """True if the argument at a place is missing, in full precision, or another array's dtype."""
    arguments, depth = [[""]], 0
    for token in tokens[start:]:
        depth += (token.string in ("(", "[", "{")) - (token.string in (")", "]", "}"))
        if depth < 0 or (depth == 0 and token.string in (";", "", "\n", "\r\n")):
            break
        if depth == 0 and token.string == ",":
            arguments.append([""])
        else:
            is_string = token.type == tokenize.STRING
            arguments[-1].append(f"'{token.string}" if is_string else token.string)
    words = arguments[place] if place < len(arguments) else []
    text = "".join(words)
    if "=" in words or words[-2:] == [".", "dtype"] or _FULL.fullmatch(text or "None"):
        return True  # `dtype=` is looked at by itself
    bound = ((t.string, _text(tokens, i + 1)) for i, t in enumerate(tokens))
    return place > 0 and text.endswith("dtype") and any((text, sign) in bound for sign in "=:")


def with_imports(sources: Mapping[Path, str]) -> dict[Path, str]:
    """Returns the sources of files and of those in their folders that they import."""
    everything, waiting = dict(sources), list(sources)
    while waiting:
        path = waiting.pop()
        find = functools.partial(_on_disk, path)
        for file in _imported_files(path, everything[path], find) - everything.keys():
            with contextlib.suppress(OSError, SyntaxError, UnicodeDecodeError):
                everything[file] = decode(file.read_bytes())[0]
                waiting.append(file)
    return everything


def _on_disk(path: Path, start: Path | None, parts: list[str]) -> set[Path]:
    """Returns the files of a module that a file imports: beside it, or in a package around it."""
    around = (folder.parent for folder in path.absolute().parents if [folder.name] == parts[:1])
    stems = [Path(home, *parts) for home in ([start] if start else [path.parent, *around])]
    files = (Path(f"{stem}{end}") for stem in stems for end in (".py", "/__init__.py"))
    return {Path(os.path.normpath(file)) for file in files if file.is_file()}


def _programs(sources: Mapping[Path, str]) -> list[frozenset[Path]]:
    """Each file with the files of some sources that it imports, at any remove."""
    homes: dict[str, set[Path]] = {}
    for path in sources:
        parts = path.parts[:-1] if path.stem == "__init__" else (*path.parts[:-1], path.stem)
        for start in range(len(parts)):
            homes.setdefault(".".join(parts[start:]), set()).add(path)

    def find(start: Path | None, parts: list[str]) -> set[Path]:
        return homes.get(".".join([*(start.parts if start else ()), *parts]), set())

    direct = {path: _imported_files(path, text, find) for path, text in sources.items()}
    programs: list[frozenset[Path]] = []
    for path in sources:
        program, waiting = set[Path](), {path}
        while waiting:
            program |= waiting
            waiting = {file for member in waiting for file in direct[member]} - program
        programs.append(frozenset(program))
    return programs


def _imported_files(
    path: Path, text: str, find: Callable[[Path | None, list[str]], set[Path]]
) -> set[Path]:
    imported: set[Path] = set()
    for home, names in _IMPORT.findall(text):
        dots = len(home) - len(home.lstrip("."))
        start = Path(os.path.normpath(Path(path.parent, *[".."] * (dots - 1)))) if dots else None
        for name in re.findall(r"([.\w*]+)(?:\s+as\s+\w+)?", names):
            parts = [part for part in f"{home}.{name}".split(".") if part]
            ends = range(len(parts), -1 if dots else 0, -1)
            files = next(filter(None, (find(start, parts[:end]) for end in ends)), set[Path]())
            imported |= {file for file in files if file.parent == path.parent} or files
    return imported
