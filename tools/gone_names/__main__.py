"""Writes `names.json`: what releases of `flax.optim`'s time had and the installed ones do not.

    python -m tools.gone_names [--cache FOLDER]

Run by `nox -s gone_names` with the newest supported releases. What it writes depends on the
releases alone: run twice, it writes the same bytes. If the file was behind, the exit code is 1.
"""

import argparse
import importlib.metadata
import json
import re
import sys
import tempfile
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from legacy_optim.gone import remedies
from tools.gone_names import releases, today

TARGET = Path(__file__).parents[2] / "legacy_optim" / "gone" / "names.json"


def main(argv: Sequence[str] | None = None) -> int:
    """Reads the releases, asks today's, writes the difference."""
    parser = argparse.ArgumentParser(description=__doc__, prog="gone_names")
    parser.add_argument("--cache", type=Path, help="where to keep what was downloaded and read")
    cache = parser.parse_args(argv).cache
    recorded = json.loads(TARGET.read_text(encoding="utf-8"))["today"]
    for package, version in recorded.items():
        installed = importlib.metadata.version(releases.RELEASES[package][0])
        if _numbers(installed) < _numbers(version):
            print(f"{package}: expected {version} or later, found {installed}", file=sys.stderr)
            return 2
    if cache is not None:
        cache.mkdir(parents=True, exist_ok=True)
        inventory = _inventory(cache)
    else:
        with tempfile.TemporaryDirectory() as folder:
            inventory = _inventory(Path(folder))
    before, after = TARGET.read_text(encoding="utf-8"), _text(inventory)
    TARGET.write_text(after, encoding="utf-8")
    counts = {
        kind: _count(inventory[kind]) for kind in ("modules", "names", "attributes", "keywords")
    }
    releases_asked = ", ".join(f"{name} {version}" for name, version in inventory["today"].items())
    print(f"{TARGET}: {releases_asked}: {counts}", file=sys.stderr)
    if before != after:
        print("It was behind, and is now up to date: see `git diff`", file=sys.stderr)
    return int(before != after)


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)]


def _inventory(cache: Path) -> dict[str, Any]:
    inventory: dict[str, Any] = {
        "today": {},
        "moved": {},
        "read": {},
        "modules": {},
        "objects": {},
        "names": {},
        "attributes": {},
        "keywords": {},
    }
    for package, (project, old, later) in releases.RELEASES.items():
        versions = [*old.split(), *later.split()]
        reads = [releases.read(package, version, cache) for version in versions]
        inventory["today"][package] = importlib.metadata.version(project)
        shown = [version.rpartition("==")[2] for version in versions]
        inventory["read"][package] = [[v, r.how] for v, r in zip(shown, reads, strict=True)]
        snapshots = [read.names for read in reads]
        _compare(package, snapshots, len(old.split()), inventory)
    return inventory


def _compare(package: str, snapshots: list[Any], old: int, inventory: dict[str, Any]) -> None:
    """Adds what the old snapshots have and today's packages do not."""
    modules = {
        name
        for snapshot in snapshots[:old]
        for name in snapshot
        if remedies.package(name) == package
    }
    for name in sorted(modules):
        last = max(i for i, s in enumerate(snapshots) if name in s)
        owner = today.module(name)
        if owner is today.UNKNOWN:
            continue
        if owner is today.MISSING and today.value(name) is not today.MISSING:
            owner = today.value(name)  # a module then, an object now: `jax.config`
            inventory["objects"][name] = last
            if callable(owner):
                continue  # named like its module, and the module for nothing else
        elif owner is today.MISSING:
            inventory["modules"][name] = last
        members = {key for s in snapshots[:old] for key in s.get(name, ())}
        for key in sorted(members):
            at = max(i for i, s in enumerate(snapshots) if key in s.get(name, ()))
            if owner is today.MISSING:
                _find_moved(name, key, inventory)
                if f"{name}.{key}" in remedies.RENAMED:
                    inventory["names"].setdefault(name, {})[key] = at
                continue
            value = today.member(owner, key)
            if value is today.MISSING and not _is_module_today(name, key):
                inventory["names"].setdefault(name, {})[key] = at
                _find_moved(name, key, inventory)
            elif value is not today.MISSING:
                entries = [s.get(name, {}).get(key, {}) for s in snapshots]
                _compare_parts(f"{name}.{key}", value, entries, old, inventory)


def _compare_parts(
    name: str, value: Any, entries: list[dict[str, Any]], old: int, inventory: dict[str, Any]
) -> None:
    """Adds the attributes and keywords that something lost that is still there."""
    for keyword in sorted({k for e in entries[:old] for k in e.get("keywords", ())}):
        if today.takes(value, keyword) is False:
            at = max(i for i, e in enumerate(entries) if keyword in e.get("keywords", ()))
            inventory["keywords"].setdefault(name, {})[keyword] = at
    for attribute in sorted({a for e in entries[:old] for a in e.get("attributes", ())}):
        at = max(i for i, e in enumerate(entries) if attribute in e.get("attributes", ()))
        member = today.member(value, attribute)
        if member is today.MISSING:
            if not _is_set_by_instances(value, attribute):
                inventory["attributes"].setdefault(name, {})[attribute] = at
            continue
        lists = [e.get("attributes", {}).get(attribute, ()) for e in entries]
        for keyword in sorted({k for keywords in lists[:old] for k in keywords}):
            if today.takes(member, keyword) is False:
                at = max(i for i, keywords in enumerate(lists) if keyword in keywords)
                method = f"{name}.{attribute}"
                inventory["keywords"].setdefault(method, {})[keyword] = at


def _find_moved(module: str, name: str, inventory: dict[str, Any]) -> None:
    """Adds the place of a name, among the modules to which its own module's names went."""
    for target in remedies.MOVED.get(module, ()):
        value = today.value(f"{target}.{name}")
        if value is not today.MISSING and not isinstance(value, types.ModuleType):
            inventory["moved"][f"{module}.{name}"] = f"{target}.{name}"
            return


def _is_module_today(package: str, name: str) -> bool:
    return today.module(f"{package}.{name}") is not today.MISSING


def _is_set_by_instances(cls: Any, attribute: str) -> bool:
    """True if `__init__` has a parameter of that name, which it usually stores."""
    return isinstance(cls, type) and today.takes(cls, attribute) is True


def _count(table: dict[str, Any]) -> int:
    return sum(len(v) if isinstance(v, dict) else 1 for v in table.values())


def _text(inventory: dict[str, Any]) -> str:
    """JSON with one line for each module or function, so that differences can be read."""
    parts = []
    for key, table in inventory.items():
        rows = [f"{json.dumps(k)}: {json.dumps(v, sort_keys=True)}" for k, v in table.items()]
        rows = rows if key in ("today", "read") else sorted(rows)
        parts.append(f"{json.dumps(key)}: {{\n" + ",\n".join(rows) + "\n}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


if __name__ == "__main__":
    sys.exit(main())
