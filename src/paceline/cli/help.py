"""The layout of --help: options under the headings of their panels."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup

LAST = "Options"


class _Panels:
    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        pieces: list[str] = super().collect_usage_pieces(ctx)  # type: ignore[misc]  # a mixin
        return [piece.replace("{", "").replace("}", "") for piece in pieces]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        panels: dict[str, list[tuple[str, str]]] = {}
        for param in sorted(self.get_params(ctx), key=lambda p: _panel(p) == LAST):  # type: ignore[attr-defined]
            if (record := param.get_help_record(ctx)) is None:  # hidden
                continue
            names, text = record
            # The epilog describes the --no- form of flags.
            short = (names.partition(" <")[0].partition(" / ")[0], text.replace(".0]", "]"))
            panels.setdefault(_panel(param), []).append(short)
        for title, rows in panels.items():
            with formatter.section(title):
                formatter.write_dl(rows)


class GroupedCommand(_Panels, TyperCommand):
    """A command with grouped options in --help."""


class GroupedGroup(_Panels, TyperGroup):
    """A command with subcommands that can also run by itself."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        super().format_options(ctx, formatter)
        self.format_commands(ctx, formatter)


def _panel(param: Any) -> str:
    default = "Arguments" if param.param_type_name == "argument" else LAST
    return getattr(param, "rich_help_panel", None) or default
