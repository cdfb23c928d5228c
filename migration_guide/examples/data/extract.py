"""Takes the examples' text data out of the packages that ship them.

    python migration_guide/examples/data/extract.py

What it wrote is kept here, because the packages' next versions have other texts, and a recorded
training can be compared only with one on the same data. README.md says where each file comes from.
"""

import pydoc_data.topics
import re
import shutil
import sysconfig
from pathlib import Path

import babel

HERE = Path(__file__).parent

_TOPICS = ("assignment", "class", "exceptions", "function", "objects")
_SOURCES = ("bisect", "colorsys", "heapq", "queue")
_UNITS = ("length", "mass", "duration", "volume", "area", "speed", "temperature")
_LONGEST_NAME = 18


def main() -> None:
    """Writes the files."""
    text = "\n".join(pydoc_data.topics.topics[topic] for topic in _TOPICS)
    (HERE / "prose.txt").write_text(text, encoding="utf-8")
    library = Path(sysconfig.get_path("stdlib"))
    sources = "\n".join(
        Path(library, f"{name}.py").read_text(encoding="utf-8") for name in _SOURCES
    )
    (HERE / "sources.txt").write_text(sources, encoding="utf-8")
    rows = "".join(f"{english}\t{german}\n" for english, german in _names())
    (HERE / "names.tsv").write_text(rows, encoding="utf-8")
    shutil.copy(library / "LICENSE.txt", HERE / "LICENSE.python")
    shutil.copy(Path(babel.__file__).parent / "locale-data" / "LICENSE.unicode", HERE)


def _names() -> list[tuple[str, str]]:
    """Short names of countries, languages and units, in English and German, in a fixed order."""
    english, german = babel.Locale("en"), babel.Locale("de")
    found = {}
    for table in ("territories", "languages"):
        for code, name in sorted(getattr(english, table).items()):
            found.setdefault(name, getattr(german, table).get(code, ""))
    units = (english._data["unit_display_names"], german._data["unit_display_names"])
    for unit in sorted(units[0]):
        if unit.startswith(_UNITS):
            found.setdefault(units[0][unit].get("long", ""), units[1][unit].get("long", ""))
    return [(a, b) for a, b in found.items() if a != b and _is_short(a) and _is_short(b)]


def _is_short(name: str) -> bool:
    return bool(re.fullmatch(r"[A-Za-zÄÖÜäöüß -]+", name)) and len(name) <= _LONGEST_NAME


if __name__ == "__main__":
    main()
