"""Prints rows as a table on the terminal, and formats durations."""

import sys
from typing import Any

_COLOURS = {
    **{"ok": "green", "warning": "yellow", "error": "red"},
    **{"done": "green", "running": "cyan", "stopped": "yellow", "stalled": "red", "failed": "red"},
}


def show_table(title: str, rows: list[dict[str, Any]]) -> None:
    """Print rows under the keys of the first one, numbers right-aligned; nothing if empty."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    if not rows:
        return
    table = Table(title=title, title_justify="left")
    for column in rows[0]:
        numbers = any(isinstance(row[column], int | float) for row in rows)
        table.add_column(column, justify="right" if numbers else "left", overflow="fold")
    for row in rows:
        cells = map(_cell, row.values())
        table.add_row(*(Text(cell, style=_COLOURS.get(cell, "")) for cell in cells))
    Console(width=None if sys.stdout.isatty() else 120).print(table)


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_cell, value))
    if isinstance(value, float):
        return f"{value:,.0f}" if value >= 100 else f"{value:.4g}"
    return "–" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def duration(seconds: float) -> str:
    """Return a duration in its two largest units."""
    minutes, rest = divmod(round(seconds), 60)
    hours = minutes // 60
    if hours >= 48:
        return f"{hours // 24} d {hours % 24} h"
    if hours:
        return f"{hours} h {minutes % 60} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
