"""How --help looks: options under the headings of their panels, one line each where it fits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from typer.core import TyperCommand, TyperGroup

LAST = "Options"


class GroupedCommand(TyperCommand):
    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [piece.replace("{", "").replace("}", "") for piece in super().collect_usage_pieces(ctx)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        write_panels(self.get_params(ctx), ctx, formatter)


class GroupedGroup(TyperGroup):
    """For commands that do something by themselves and have subcommands too."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [piece.replace("{", "").replace("}", "") for piece in super().collect_usage_pieces(ctx)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        write_panels(self.get_params(ctx), ctx, formatter)
        self.format_commands(ctx, formatter)


def write_panels(params: Sequence[Any], ctx: Any, formatter: Any) -> None:
    panels: dict[str, list[tuple[str, str]]] = {}
    for param in sorted(params, key=lambda p: _panel(p) == LAST):
        # How to undo a flag is said once, below the options.
        if (shown := param.get_help_record(ctx)) is None:  # hidden: what an option was called before
            continue
        names, text = shown
        short = (names.partition(" <")[0].partition(" / ")[0], text.replace(".0]", "]"))
        panels.setdefault(_panel(param), []).append(short)
    for title, rows in panels.items():
        with formatter.section(title):
            formatter.write_dl(rows)


def _panel(param: Any) -> str:
    default = "Arguments" if param.param_type_name == "argument" else LAST
    return getattr(param, "rich_help_panel", None) or default
