"""Results as files: one JSON for each benchmark, and one Markdown table made of all of them."""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import Benchmark, Outcome, Role

__all__ = ["record_of", "write_record", "write_table"]

_HEADING = """\
# Results

Made by `make bench`; a run of some benchmarks renews their rows and leaves the others. Figures are medians over the
rounds of one run, in which the sides took turns; in brackets the least and the greatest. Comparisons are made round
by round before the median is taken. Every value is in the JSON file beside this one that has the row's name.
"""

Record = dict[str, Any]  # Any: JSON


def record_of(benchmark: Benchmark, outcome: Outcome, machine: dict[str, str], versions: dict[str, str]) -> Record:
    """What is kept of one benchmark's run."""
    return {
        "id": benchmark.id,
        "title": benchmark.title,
        "target": benchmark.target,
        "met": outcome.met,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": machine,
        "versions": versions,
        "checks": [{"text": each.text, "measured": each.measured, "met": each.met} for each in outcome.checks],
        "series": [
            {
                "name": each.name,
                "role": each.role.value,
                "unit": each.unit,
                "median": _rounded(each.median),
                "min": _rounded(each.least),
                "max": _rounded(each.greatest),
                "runs": [_rounded(value) for value in each.runs],
            }
            for each in outcome.series
        ],
    }


def write_record(record: Record, folder: Path) -> None:
    """Write ``<id>.json``."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{record['id']}.json").write_text(json.dumps(record, indent=2) + "\n")


def write_table(folder: Path) -> None:
    """Write ``README.md`` from the JSON files of the folder: a table for each machine and set of versions."""
    records = [json.loads(path.read_text()) for path in folder.glob("P*.json")]
    records.sort(key=_place_of)
    groups: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        groups.setdefault((_listed(record["machine"]), _listed(record["versions"])), []).append(record)
    parts = [_HEADING]
    for (machine, versions), members in groups.items():
        parts.append(f"Machine: {machine}.  \nVersions: {versions}.\n")
        parts.append(_table(members))
    (folder / "README.md").write_text("\n".join(parts))


def _place_of(record: Record) -> tuple[int, str]:
    """By the number, and then by the letters that may follow it: P3, P3S, P4."""
    after_letter = record["id"][1:]
    letters = after_letter.lstrip("0123456789")
    return int(after_letter.removesuffix(letters)), letters


def _table(records: Sequence[Record]) -> str:
    roles = [Role.TURNOUT, Role.PEER, Role.FLOOR, Role.COMPARISON]
    header = ["#", "what", *(role.value for role in roles), "target", "met", "date"]
    rows = [header, ["---"] * len(header)]
    for record in records:
        cells = [_series_cell(record, role) for role in roles]
        rows.append([record["id"], record["title"], *cells, record["target"], _verdict_cell(record), record["date"]])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows) + "\n"


def _series_cell(record: Record, role: Role) -> str:
    lines = []
    for each in record["series"]:
        if each["role"] == role.value:
            unit = "" if each["unit"] == "x" else f" {each['unit']}"
            times = " x" if each["unit"] == "x" else ""
            spread = f"{each['min']:.3g} to {each['max']:.3g}"
            lines.append(f"{each['name']}: **{each['median']:.3g}{unit}{times}** ({spread})")
    return "<br>".join(lines) or "-"


def _verdict_cell(record: Record) -> str:
    if record["met"]:
        return "yes"
    missed = "; ".join(f"{check['text']}, is {check['measured']}" for check in record["checks"] if not check["met"])
    return f"**no**: {missed}"


def _listed(facts: dict[str, str]) -> str:
    return ", ".join(f"{name} {fact}" for name, fact in facts.items())


def _rounded(value: float) -> float:
    return float(f"{value:.5g}")
