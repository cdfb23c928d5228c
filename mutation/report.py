"""What became of each fault: a report of lines, faults planted again from it, and a page."""

import collections
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

KILLED, SURVIVED, TIMEOUT, GONE = "killed", "survived", "timeout", "gone"
DEAD = (KILLED, TIMEOUT)
UNREACHED = "no test reaches this line"
REASONS = Path(__file__).with_name("reasons.toml")
_HEAD = """# Random single faults

Written by `python -m mutation --again --results mutation/RESULTS.md` from the report of a run of
`nox -s mutants` (`--sample {sample} --seed {seed}`{part}); why a fault may live is said in
`reasons.toml`. Each fault is run through the tests that reach its line by a measurement of
coverage, one of each function first and the quickest of these.

| of {count} faults | number |
| --- | ---: |
| found by the tests as they were | {at_first} |
| found by a test that was written for it, or for one like it | {since} |
| in a line that was deleted or written anew since | {gone} |
| living, with a reason below | {explained} |
| living, without a reason | {unexplained} |

Found by the tests as they were: {first_share:.1%}; {unreached} were in lines that no test reached.
Found now, of those whose line is still there: {share:.1%}.

{others}
"""


@dataclass(frozen=True)
class Recorded:
    """A fault of an earlier run, wherever its line is by now.

    Attributes:
      name: of the fault in the report.
      change: number, text before and text after of the line.
    """

    name: str
    change: tuple[int, str, str]

    @property
    def module(self) -> str:
        """Path of the file, from the root."""
        return self.name.partition(":")[0]

    def __str__(self) -> str:
        return self.name

    def planted(self, source: str) -> str:
        """The module's text with the fault in it.

        Raises:
          ValueError: there is no such line any more.
        """
        number, before, after = self.change
        lines = source.splitlines()
        is_removed = not before.strip()  # a decorator, and the empty line above it
        same = [
            i for i, x in enumerate(lines) if x.strip() == (after if is_removed else before).strip()
        ]
        if not same:
            raise ValueError(f"{self}: the module has no such line")
        at = min(same, key=lambda index: abs(index + 1 - number))
        if is_removed:
            lines.pop(at - 1)
        else:
            lines[at] = lines[at].replace(lines[at].strip(), after.strip())
        return "\n".join(lines) + "\n"


def read(report: Path) -> dict[str, list[dict[str, Any]]]:
    """What was found of each fault, the first time first."""
    lines = report.read_text(encoding="utf-8").splitlines() if report.exists() else []
    found: dict[str, list[dict[str, Any]]] = {}
    for line in map(json.loads, lines):
        found.setdefault(line["fault"], []).append(line)
    return found


def living(found: Mapping[str, Sequence[dict[str, Any]]]) -> list[Recorded]:
    """The faults that no test has noticed so far."""
    last = {name: times[-1] for name, times in found.items()}
    return [
        Recorded(name, tuple(each["change"]))
        for name, each in last.items()
        if each["outcome"] == SURVIVED and each["change"] is not None
    ]


def page(found: Mapping[str, Sequence[dict[str, Any]]], sample: int, seed: int) -> str:
    """The results as Markdown: counts, by module, and every living fault with its reason."""
    written = tomllib.loads(REASONS.read_text(encoding="utf-8"))
    reasons = {(each["module"], each["line"].strip()): each["why"] for each in written["living"]}
    modules: dict[str, collections.Counter[str]] = {}
    rows = []
    for name, times in sorted(found.items()):
        module, _, place = name.partition(":")
        first, last = times[0]["outcome"], times[-1]["outcome"]
        kind = "at_first" if first in DEAD else "since" if last in DEAD else last
        _, before, after = times[0]["change"] or (0, "", "")
        if kind == SURVIVED:
            why = reasons.get((module, after.strip()), "")
            kind = "explained" if why else "unexplained"
            number = place.partition(" ")[0]
            lines = f"`{_cell(before)}`<br>`{_cell(after)}`"
            rows.append(f"| `{module}`, {number} | {lines} | {why or '**open**'} |")
        modules.setdefault(module, collections.Counter())[kind] += 1
    total: collections.Counter[str] = sum(modules.values(), collections.Counter())
    counts = {kind: total[kind] for kind in ("at_first", "since", GONE, "explained", "unexplained")}
    count = total.total()
    dead = counts["at_first"] + counts["since"]
    share = dead / max(count - counts[GONE], 1)
    first_share = counts["at_first"] / max(count, 1)
    unreached = sum(times[0]["test"] == UNREACHED for times in found.values())
    head = {"count": count, "share": share, "first_share": first_share, "unreached": unreached}
    head["part"] = f", the first {count} of them" if count < sample else ""
    head["others"] = written["other_samples"].strip()
    parts = [_HEAD.format(sample=sample, seed=seed, **head, **counts)]
    parts.append(
        "## Living\n\n| where | line, and with the fault | why it may live |\n| --- | --- | --- |"
    )
    parts[-1] += "".join(f"\n{row}" for row in rows) + "\n"
    parts.append(
        "## By module\n\n| module | faults | at first | since | gone | living |\n"
        "| --- | ---: | ---: | ---: | ---: | ---: |"
    )
    for module, kinds in sorted(modules.items()):
        alive = kinds["explained"] + kinds["unexplained"]
        numbers = (kinds.total(), kinds["at_first"], kinds["since"], kinds[GONE], alive)
        parts[-1] += f"\n| `{module}` | {' | '.join(map(str, numbers))} |"
    return "\n".join([*parts, ""])


def _cell(line: str) -> str:
    return line.strip().replace("|", "\\|")
