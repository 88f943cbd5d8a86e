"""`get_device_placement`: the groups of a program, what was built on them, and how it is laid out; as a drawing."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from turnout.checks import check_choice
from turnout.infra.device_group import DeviceGroup, settled_groups
from turnout.infra.device_mesh import DeviceMesh
from turnout.infra.world import Built, current_world

__all__ = ["get_device_placement"]

_FORMATS = ("text", "html", "svg")
_WIDTH = 80  # of a terminal, in columns
_MOST_RANKS = 16
_FIRST, _LAST = 6, 3  # ranks that are shown of more
_MOST_ROWS, _MOST_COLUMNS = 6, 10
_PARALLELISM = ("pp", "dp", "fsdp", "tp", "cp", "ep")
_TITLE = "DEVICE PLACEMENT TOPOLOGY"


def get_device_placement(groups: Sequence[DeviceGroup] | None = None, *, format: str = "text") -> str:  # noqa: A002
    """The topology of the program as a drawing: each group, its ranks, and the meshes of what was built on it.

    Args:
        groups: that are drawn; None draws those of `initialize`.
        format: "text" for a terminal of 80 columns, "html" or "svg" for a page.

    Returns:
        The drawing; in text, every line is as wide as the others.

    Raises:
        UsageError: there is no such format, or the groups cannot be meant.

    Example:
        >>> print(get_device_placement([DeviceGroup("model", [0, 1], "cuda")]))  # doctest: +ELLIPSIS
        ╔══...
    """
    check_choice("get_device_placement(): format", format, _FORMATS)
    world = current_world()
    chosen = world.groups if groups is None else settled_groups(groups)
    pictures = [_Picture(group, tuple(world.built.get(group.name, ()))) for group in chosen]
    return {"text": _as_text, "html": _as_html, "svg": _as_svg}[format](pictures)


@dataclass(frozen=True, slots=True)
class _Picture:
    """One group, in words that every format shows."""

    group: DeviceGroup
    built: tuple[Built, ...]

    @property
    def title(self) -> str:
        return f"DeviceGroup: {self.group.name}"

    @property
    def facts(self) -> list[tuple[str, str]]:
        facts = [("Device Type", self.group.device_type), ("Ranks", _shortened(self.group.listed_ranks))]
        if self.group.gpus_per_worker > 1:
            facts.append(("Workers", f"{self.group.num_workers}, of {self.group.gpus_per_worker} devices each"))
        return facts


def _mesh_title(built: Built) -> str:
    return f"DeviceMesh: {built.class_name}"


def _mesh_facts(mesh: DeviceMesh) -> list[tuple[str, str]]:
    dims = " x ".join(f"{name}={size}" for name, size in zip(mesh.mesh_dim_names, mesh.shape, strict=True))
    return [("Dimensions", dims), ("Parallelism", _parallelism(mesh))]


def _parallelism(mesh: DeviceMesh) -> str:
    sizes = {name: getattr(mesh, f"{name}_world_size") for name in _PARALLELISM}
    sizes |= {"etp": mesh.etp_world_size, "vpp": mesh.vpp_size or 1, "ulysses": mesh.ulysses_size or 1}
    return ", ".join(f"{name.upper()}={size}" for name, size in sizes.items() if size > 1) or "none"


def _shortened(ranks: Sequence[int]) -> str:
    if len(ranks) <= _MOST_RANKS:
        return str(list(ranks))
    first, last = ", ".join(map(str, ranks[:_FIRST])), ", ".join(map(str, ranks[-_LAST:]))
    return f"[{first} ... {last}] ({len(ranks)} in all)"


def _grid(mesh: DeviceMesh) -> list[list[str]] | None:
    """The ranks in rows and columns, shortened; None for three dimensions and more."""
    if len(mesh.shape) > 2:
        return None
    num_columns = mesh.shape[-1]
    rows = [list(mesh.ranks[start : start + num_columns]) for start in range(0, mesh.world_size, num_columns)]
    shown = [
        [str(rank) for rank in (row if num_columns <= _MOST_COLUMNS else row[: _MOST_COLUMNS - 2])]
        + ([] if num_columns <= _MOST_COLUMNS else ["...", str(row[-1])])
        for row in (rows if len(rows) <= _MOST_ROWS else rows[: _MOST_ROWS - 2])
    ]
    if len(rows) > _MOST_ROWS:
        last = [str(rank) for rank in rows[-1]]
        if num_columns > _MOST_COLUMNS:
            last = [*last[: _MOST_COLUMNS - 2], "...", last[-1]]
        shown += [["..."] * len(last), last]
    return shown


# -- text


def _as_text(pictures: Sequence[_Picture]) -> str:
    lines = ["╔" + "═" * (_WIDTH - 2) + "╗", "║" + _centred(_TITLE) + "║", "╚" + "═" * (_WIDTH - 2) + "╝"]
    if not pictures:
        lines.append(_padded(" no device groups", _WIDTH))
    for picture in pictures:
        lines.append("┌" + "─" * (_WIDTH - 2) + "┐")
        lines += _boxed(f" {picture.title}")
        lines.append("├" + "─" * (_WIDTH - 2) + "┤")
        for name, value in picture.facts:
            lines += _boxed(f"  {name:<12}: ", value)
        if not picture.built:
            lines += _boxed("  (no device meshes)")
        for built in picture.built:
            lines += _mesh_lines(built)
        lines.append("└" + "─" * (_WIDTH - 2) + "┘")
    return "\n".join(lines)


def _mesh_lines(built: Built) -> Iterator[str]:
    yield from _boxed("")
    yield from _boxed(f"  ┌─ {_mesh_title(built)}")
    for name, value in _mesh_facts(built.mesh):
        yield from _boxed(f"  │  {name:<12}: ", value, "  │    ")
    grid = _grid(built.mesh)
    if grid is None:
        yield from _boxed(f"  └─ {'Shape':<12}: ", " x ".join(map(str, built.mesh.shape)))
        return
    names = built.mesh.mesh_dim_names
    down = f"{names[0]} down, {names[1]} across" if len(names) == 2 else f"{names[0]} across"
    yield from _boxed(f"  └─ {'Ranks':<12}: ", down)
    width = max(len(cell) for row in grid for cell in row)
    edges = ["─" * (width + 2)] * len(grid[0])
    for number, row in enumerate(grid):
        yield from _boxed("       " + ("┌" + "┬".join(edges) + "┐" if number == 0 else "├" + "┼".join(edges) + "┤"))
        yield from _boxed("       │" + "│".join(f" {cell:>{width}} " for cell in row) + "│")
    yield from _boxed("       └" + "┴".join(edges) + "┘")


def _boxed(head: str, value: str = "", next_head: str | None = None) -> Iterator[str]:
    """Text within the lines at both sides, over as many lines as it needs."""
    room = _WIDTH - 2
    hang = " " * _columns(head) if next_head is None else next_head
    if _columns(head) > room // 2:  # a long name, and nothing after it
        head, value, hang = "", head + value, "    "
    for number, part in enumerate(_wrapped(value, room - _columns(head), room - _columns(hang))):
        yield "│" + _padded((hang if number else head) + part, room) + "│"


def _wrapped(text: str, first_room: int, room: int) -> Iterator[str]:
    """Text in pieces of so many columns, at blanks where there are any."""
    left, space = text, first_room
    while _columns(left) > space:
        end = used = 0
        while used + _columns(left[end]) <= space:
            used += _columns(left[end])
            end += 1
        blank = left.rfind(" ", 1, end + 1)
        cut = blank if blank > end // 2 else end
        yield left[:cut].rstrip()
        left, space = left[cut:].lstrip(), room
    yield left


def _columns(text: str) -> int:
    """The columns of a terminal that a text takes: a wide character takes two."""
    from rich.cells import cell_len

    return cell_len(text)


def _padded(text: str, width: int) -> str:
    return text + " " * (width - _columns(text))


def _centred(text: str) -> str:
    left = (_WIDTH - 2 - _columns(text)) // 2
    return _padded(" " * left + text, _WIDTH - 2)


# -- pages

_STYLE = "font-family:system-ui,sans-serif;border:1px solid #8a94a6;border-radius:8px;padding:12px;margin:8px 0"
_CELL_STYLE = "border:1px solid #8a94a6;padding:2px 8px;text-align:right"


def _as_html(pictures: Sequence[_Picture]) -> str:
    parts = [f"<section><h2>{_TITLE}</h2>"]
    for picture in pictures:
        parts.append(f'<div style="{_STYLE}"><h3>{html.escape(picture.title)}</h3><dl>')
        parts += [f"<dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd>" for name, value in picture.facts]
        parts.append("</dl>")
        for built in picture.built:
            parts.append(f"<h4>{html.escape(_mesh_title(built))}</h4><dl>")
            parts += [f"<dt>{name}</dt><dd>{html.escape(value)}</dd>" for name, value in _mesh_facts(built.mesh)]
            parts.append("</dl>")
            grid = _grid(built.mesh)
            if grid is not None:
                rows = ("".join(f'<td style="{_CELL_STYLE}">{cell}</td>' for cell in row) for row in grid)
                parts.append('<table style="border-collapse:collapse">')
                parts += [f"<tr>{row}</tr>" for row in rows]
                parts.append("</table>")
        parts.append("</div>")
    parts.append("</section>")
    return "\n".join(parts)


_LINE = 20  # pixels
_CELL = 34
_PAGE = 720


class _Drawing:
    """An SVG that grows downwards."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.top = 0

    def text(self, text: str, left: int, *, size: int = 13, weight: str = "normal") -> None:
        self.top += _LINE
        self.parts.append(
            f'<text x="{left}" y="{self.top}" font-size="{size}" font-weight="{weight}">{html.escape(text)}</text>'
        )

    def cell(self, text: str, left: int, top: int) -> None:
        self.parts.append(
            f'<rect x="{left}" y="{top}" width="{_CELL}" height="{_CELL - 8}" fill="#e8f0fe" stroke="#5b6b8c"/>'
            f'<text x="{left + _CELL // 2}" y="{top + 18}" font-size="12" text-anchor="middle">{text}</text>'
        )

    def frame(self, top: int, bottom: int) -> None:
        self.parts.insert(
            0,
            f'<rect x="8" y="{top}" width="{_PAGE - 16}" height="{bottom - top}" rx="8" fill="#fbfcfe" '
            'stroke="#5b6b8c"/>',
        )


def _as_svg(pictures: Sequence[_Picture]) -> str:
    drawing = _Drawing()
    drawing.text(_TITLE, 16, size=16, weight="bold")
    for picture in pictures:
        top = drawing.top + 10
        drawing.top = top + 4
        drawing.text(picture.title, 20, size=14, weight="bold")
        for name, value in picture.facts:
            drawing.text(f"{name}: {value}", 28)
        for built in picture.built:
            drawing.text(_mesh_title(built), 28, weight="bold")
            for name, value in _mesh_facts(built.mesh):
                drawing.text(f"{name}: {value}", 44)
            for row in _grid(built.mesh) or []:
                for column, cell in enumerate(row):
                    drawing.cell(cell, 44 + column * (_CELL + 4), drawing.top + 8)
                drawing.top += _CELL - 4
        drawing.top += 14
        drawing.frame(top, drawing.top)
    body = "\n".join(drawing.parts)
    height = drawing.top + 12
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_PAGE}" height="{height}" viewBox="0 0 {_PAGE} {height}" '
        f'font-family="system-ui, sans-serif" fill="#1d2433">\n<rect width="{_PAGE}" height="{height}" fill="white"/>\n'
        f"{body}\n</svg>\n"
    )
