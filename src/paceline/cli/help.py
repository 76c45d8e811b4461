"""How --help looks: options under the headings of their panels, one line each where it fits."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup

LAST = "Options"


class _Panels:
    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        pieces: list[str] = super().collect_usage_pieces(ctx)  # type: ignore[misc]  # of typer's class
        return [piece.replace("{", "").replace("}", "") for piece in pieces]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        panels: dict[str, list[tuple[str, str]]] = {}
        for param in sorted(self.get_params(ctx), key=lambda p: _panel(p) == LAST):  # type: ignore[attr-defined]
            if (shown := param.get_help_record(ctx)) is None:  # hidden
                continue
            names, text = shown
            # How to undo a flag is said once, below the options.
            short = (names.partition(" <")[0].partition(" / ")[0], text.replace(".0]", "]"))
            panels.setdefault(_panel(param), []).append(short)
        for title, rows in panels.items():
            with formatter.section(title):
                formatter.write_dl(rows)


class GroupedCommand(_Panels, TyperCommand):
    pass


class GroupedGroup(_Panels, TyperGroup):
    """A command that does something by itself and has subcommands, too."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        super().format_options(ctx, formatter)
        self.format_commands(ctx, formatter)


def _panel(param: Any) -> str:
    default = "Arguments" if param.param_type_name == "argument" else LAST
    return getattr(param, "rich_help_panel", None) or default
