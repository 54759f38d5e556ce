"""A table of ten thousand rows for a terminal: it draws only the rows in sight."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean as mean
from typing import Any, ClassVar, Final, NamedTuple

from rich.cells import set_cell_size
from rich.color import Color as RichColor
from rich.segment import Segment
from rich.style import Style
from textual.binding import Binding
from textual.color import Color
from textual.events import Resize
from textual.geometry import Region, Size
from textual.message import Message
from textual.reactive import reactive
from textual.renderables.sparkline import Sparkline
from textual.scroll_view import ScrollView
from textual.strip import Strip

from dscampaign.orchestrator.formatting import clean

_COLOURS: Final = {"blue": "secondary", "cyan": "primary", "green": "success", "yellow": "warning", "red": "error"}
"""Colours of cells, by the theme's names."""

NARROW: Final = 100  # below so many characters, one blank is between two columns instead of two

Cell = str | tuple[str, str] | list[float]


class Column(NamedTuple):
    """A column: `cell` returns text, text and its colour, or a sparkline's values; `key` sorts, None for no order."""

    label: str
    width: int  # in characters; the least width of a column that `grows`
    cell: Callable[[Any], Cell]
    key: Callable[[Any], Any] | None = None
    needed: int = 0  # columns with a small number stay when the terminal is narrow
    right: bool = False
    grows: bool = False


class Rows(ScrollView, can_focus=True):
    """A table with a cursor; its `name` identifies a row."""

    DEFAULT_CSS = """
    Rows { background: $background; scrollbar-size-vertical: 1; overflow-x: hidden; }
    Rows .rows--header { color: $text-muted; background: $panel; text-style: bold; }
    Rows .rows--cursor { background: $surface-lighten-2; }
    Rows:focus .rows--cursor { background: $primary-muted; text-style: bold; }
    """
    COMPONENT_CLASSES: ClassVar = {"rows--header", "rows--cursor"}
    BINDINGS: ClassVar = [
        Binding("up,k", "move(-1)", show=False),
        Binding("down,j", "move(1)", show=False),
        Binding("pageup", "page(-1)", show=False),
        Binding("pagedown", "page(1)", show=False),
        Binding("home,g", "move(-1_000_000)", show=False),
        Binding("end,G", "move(1_000_000)", show=False),
        Binding("enter", "choose", "open", show=False),
    ]
    cursor: reactive[int] = reactive(0)

    class Moved(Message):
        """The cursor or the window is elsewhere."""

    class Chosen(Message):
        """A row was chosen."""

        def __init__(self, table: Rows, row: Any) -> None:
            super().__init__()
            self.table, self.row = table, row

    def __init__(self, columns: Sequence[Column], **options: Any) -> None:
        super().__init__(**options)
        self.all_columns = tuple(columns)
        self.rows: Sequence[Any] = ()
        self.sorted_by = ""
        self._columns: list[tuple[Column, int]] = []

    def show(self, rows: Sequence[Any]) -> None:
        """Show these rows; the cursor stays on its row."""
        before, self.rows = self.row, rows
        if before and not (self.row and self.row.name == before.name):
            self.cursor = next((place for place, row in enumerate(rows) if row.name == before.name), self.cursor)
        self.cursor = self.validate_cursor(self.cursor)
        self._lay_out()

    def _lay_out(self) -> None:
        """Choose the columns that fit, and give a growing column the space that is left as far as its texts need it."""
        self.virtual_size = Size(self.size.width, len(self.rows) + 1)
        room, gap = self.scrollable_content_region.width - 1, 1 if self.size.width < NARROW else 2
        columns = list(self.all_columns)
        while len(columns) > 1 and sum(column.width + gap for column in columns) > room:
            columns.remove(max(columns, key=lambda column: column.needed))
        spare, self._columns = room - sum(column.width + gap for column in columns), []
        for column in columns:
            more = 0
            if column.grows and spare > 0:
                longest = max((len(_text(column.cell(row))[0]) for row in self.rows), default=0)
                more = max(0, min(spare, longest - column.width))
            spare -= more
            self._columns.append((column, column.width + more + gap))
        self.refresh()

    @property
    def row(self) -> Any | None:
        return self.rows[self.cursor] if self.cursor < len(self.rows) else None

    @property
    def in_sight(self) -> Sequence[Any]:
        """The rows in sight."""
        top = self.scroll_offset.y
        return self.rows[top : top + self.size.height]

    def validate_cursor(self, cursor: int) -> int:
        return max(0, min(cursor, len(self.rows) - 1))

    def watch_cursor(self) -> None:
        """Scroll the row under the cursor into sight."""
        region = Region(0, self.cursor, 1, 2)  # two lines: the header covers the first
        self.scroll_to_region(region, animate=False, force=True, x_axis=False)
        self.post_message(self.Moved())
        self.refresh()

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        self.post_message(self.Moved())

    def on_resize(self, _: Resize) -> None:
        self._lay_out()

    def action_move(self, lines: int) -> None:
        self.cursor += lines

    def action_page(self, pages: int) -> None:
        self.cursor += pages * max(1, self.size.height - 1)

    def action_choose(self) -> None:
        if self.row:
            self.post_message(self.Chosen(self, self.row))

    def render_line(self, y: int) -> Strip:
        """Draw a line of the screen; the header stays at the top."""
        if y == 0:
            style = self.get_component_rich_style("rows--header")
            labels = [f"{column.label}{'▴' * (column.label == self.sorted_by)}" for column, _ in self._columns]
            return self._strip(labels).apply_style(style)
        place = y - 1 + self.scroll_offset.y
        if place >= len(self.rows):
            return Strip.blank(self.size.width, self.rich_style)
        strip = self._strip([column.cell(self.rows[place]) for column, _ in self._columns])
        if place == self.cursor:
            return strip.apply_style(self.get_component_rich_style("rows--cursor", partial=True))
        return strip.apply_style(self.rich_style)

    def _strip(self, cells: Sequence[Cell]) -> Strip:
        segments = [Segment(" ")]
        for (column, width), cell in zip(self._columns, cells, strict=True):
            if isinstance(cell, list):
                segments += [*self._line(cell, column.width), Segment(" " * (width - column.width))]
            else:
                segments.append(self._segment(*_text(cell), width, column))
        return Strip(segments).adjust_cell_length(self.size.width)

    def _segment(self, text: str, colour: str, width: int, column: Column) -> Segment:
        gap, text = 1 if column.grows else width - column.width, clean(text)
        if len(text) > width - gap:
            text = f"{set_cell_size(text, width - gap - 1)}…"
        text = text.rjust(width - gap) if column.right else text
        style = Style(color=self._colour(_COLOURS[colour])) if colour in _COLOURS else Style(dim=colour == "dim")
        return Segment(set_cell_size(text, width), style)

    def _colour(self, name: str) -> RichColor:
        return Color.parse(self.app.theme_variables[f"text-{name}"]).rich_color

    def _line(self, values: list[float], width: int) -> list[Segment]:
        if len(values) < 2:
            return [Segment(" " * width)]
        low, high = map(self._colour, ("success", "primary"))
        line = Sparkline(values, width=width, min_color=low, max_color=high, summary_function=mean)
        return list(self.app.console.render(line, self.app.console.options))


def _text(cell: Cell) -> tuple[str, str]:
    """Return text and colour of a cell."""
    return cell if isinstance(cell, tuple) else ("" if isinstance(cell, list) else cell, "")
