# pyright: strict
"""The first word of half precision in a program, by a rule that can be told in a sentence.

The tokens of a program, and of the files below the migrated folders that it imports, are looked
through for a word of half precision, and for a `dtype=` or `.astype(` whose argument is neither a
full-precision, whole-number or bool name nor another array's `.dtype`. The `.dtype` of something
named like settings (`cfg.dtype`, `flags.dtype`) is no array's: it comes from a file or a flag.
`half` and `mixed` are words of English, too: alone they count as an attribute (`np.half`) or a
string that is no key, not as a variable.
"""

import io
import re
import tokenize
from collections.abc import Iterator, Mapping
from pathlib import Path

from migration_guide.codemod.inference.kinds import Sign

_WORDS = frozenset({"bf16", "bfloat16", "dynamicscale", "float16", "fp16", "half", "jmp", "mixed"})
_SUSPECT = re.compile(rf"{'|'.join(_WORDS)}|dtype|astype|[\"'](?:e|[<>=|]?f2)[\"']", re.IGNORECASE)
_FULL = re.compile(
    r"(?:\w+\.)*(?:bool_?|bytes|complex(64|128)?|double|float(32|64|_)?|u?int(8|16|32|64|_)?|None|object_?|str"
    r"|single|[<>=|]?([?bBhHiIlLqQpPfdgFDGOSU]|[iu][1248]|f[48]|c8|c16))"
)
_SETTINGS = re.compile(r"args|cfg|conf(igs?)?|flags|hparams|hps|options|opts|settings")
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
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type not in _LAYOUT:
                yield token._replace(string=token.string.strip("'\""))
    except (SyntaxError, tokenize.TokenError):
        return


def _says_half(tokens: list[tokenize.TokenInfo], index: int) -> bool:
    text, is_string = tokens[index].string, tokens[index].type == tokenize.STRING
    around = tokens[index - 1].string, tokens[min(index + 1, len(tokens) - 1)].string
    if is_string and text.lstrip("<>=|") in ("e", "f2"):
        return text != "e" or around == (",", ")")  # as a dtype: the last argument of a call
    if text.lower() in ("half", "mixed"):
        is_key = around in (("{", ":"), (",", ":"), ("[", "]"))
        return not is_key if is_string else around[0] == "."
    return text.isidentifier() and not _WORDS.isdisjoint(text.lower().split("_"))


def _leaves_open(tokens: list[tokenize.TokenInfo], index: int) -> bool:
    """True for a `dtype=` or `.astype(` with an argument that is not surely in full precision."""
    opens = "=" if tokens[index].string.endswith("dtype") else "("
    is_dtype = opens == "=" or tokens[index].string == "astype"
    if not is_dtype or tokens[index + 1].string != opens:
        return False
    words, depth = [""], 0
    for token in tokens[index + 2 :]:
        depth += (token.string in ("(", "[", "{")) - (token.string in (")", "]", "}"))
        if depth < 0 or (depth == 0 and token.string in (",", "", "\n", "\r\n")):
            break
        words.append(token.string)
    if words[-2:] == [".", "dtype"]:  # another array's, or a setting's: of a file or a flag
        holder = "_".join(words[:-2]).lower()
        return any(map(_SETTINGS.fullmatch, holder.split("_")))
    return not _FULL.fullmatch("".join(words))


def _programs(sources: Mapping[Path, str]) -> list[frozenset[Path]]:
    """Each file with the files below the migrated folders that it imports, at any remove."""
    homes: dict[str, set[Path]] = {}
    for path in sources:
        parts = path.parts[:-1] if path.stem == "__init__" else (*path.parts[:-1], path.stem)
        for start in range(len(parts)):
            homes.setdefault(".".join(parts[start:]), set()).add(path)
    direct = {path: _imported_files(path, text, homes) for path, text in sources.items()}
    programs: list[frozenset[Path]] = []
    for path in sources:
        program, waiting = set[Path](), {path}
        while waiting:
            program |= waiting
            waiting = {file for member in waiting for file in direct[member]} - program
        programs.append(frozenset(program))
    return programs


def _imported_files(path: Path, text: str, homes: Mapping[str, set[Path]]) -> set[Path]:
    imported: set[Path] = set()
    for home, names in _IMPORT.findall(text):
        dots = len(home) - len(home.lstrip("."))
        start = [*path.parents[dots - 1].parts] if dots else []
        for name in re.findall(r"([.\w*]+)(?:\s+as\s+\w+)?", names):
            parts = [*start, *filter(None, f"{home}.{name}".split("."))]
            tails = (".".join(parts[:end]) for end in range(len(parts), len(start), -1))
            files = next((homes[tail] for tail in tails if tail in homes), set[Path]())
            imported |= {file for file in files if file.parent == path.parent} or files
    return imported
