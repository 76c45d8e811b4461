"""One completion on a terminal: streamed, summed up, and compared with plain decoding where asked."""

from __future__ import annotations

import json
import sys
from typing import Any

from rich.console import Console

from paceline.cli.exits import INTERRUPTED
from paceline.lab.compare import Difference, explain, first_difference, require_lossless
from paceline.lab.provenance import provenance
from paceline.llm import LLM, Generation, Piece
from paceline.report.table import comparison, ratio

COLOURS = {"lookup": "green", "model": "cyan"}


class Completion:
    """request: what LLM.stream takes besides the prompt."""

    def __init__(self, llm: LLM, request: dict[str, Any], *, as_json: bool, show_sources: bool) -> None:
        self._llm, self._request = llm, request
        self._as_json, self._show_sources = as_json, show_sources
        self._out = Console(file=sys.stdout, highlight=False, markup=False, soft_wrap=True)
        self._err = Console(file=sys.stderr, highlight=False, markup=False, soft_wrap=True)

    def prompt_tokens(self, text: str, *, chat: bool) -> list[int]:
        if not chat:
            return self._llm.tokens(text)
        rendered = self._llm.target.text.render([{"role": "user", "content": text}])
        # The template spells BOS itself where the model wants one.
        tokens = self._llm.target.text.encode(rendered, special=True, add_bos=False)
        bos = self._llm.target.vocab.bos
        if self._llm.target.vocab.add_bos and bos is not None and tokens[:1] != [bos]:
            tokens.insert(0, bos)
        return tokens

    def single(self, tokens: list[int]) -> int:
        generation, interrupted = self._decode(tokens, plain=False)
        if self._as_json:
            self._print_json(self._record(generation, interrupted) | {"provenance": self._provenance()})
        else:
            self._print_summary(generation)
        return INTERRUPTED if interrupted else 0

    def compare(self, tokens: list[int]) -> int:
        self._heading("plain")
        plain, interrupted = self._decode(tokens, plain=True)
        if interrupted:
            return INTERRUPTED
        self._heading(f"drafted ({self._llm.drafter.name})")
        drafted, interrupted = self._decode(tokens, plain=False)
        if interrupted:
            return INTERRUPTED
        identical, difference, verdict = self._judge(tokens, plain, drafted)
        records = {"plain": self._record(plain, False), "drafted": self._record(drafted, False)}
        if self._as_json:
            speedup = drafted.tokens_per_second / plain.tokens_per_second
            extra = {"speedup": speedup, "identical": identical, "verdict": verdict}
            if difference is not None:
                extra["difference"] = vars(difference) | {"near_tie": difference.near_tie}
            self._print_json(records | extra | {"provenance": self._provenance()})
        else:
            self._err.print()
            comparison(records["plain"], records["drafted"], verdict, sys.stdout)
        require_lossless(difference)
        return 0

    def _judge(
        self, tokens: list[int], plain: Generation, drafted: Generation
    ) -> tuple[bool, Difference | None, str]:
        at = first_difference(plain.tokens, drafted.tokens)
        if at is None:
            return True, None, "yes"
        if self._request["temperature"] > 0:
            if self._llm.drafting.temperature > 0:
                return False, None, "no: sampled drafts draw other tokens from the same distribution"
            return False, None, f"no: from token {at}; batch noise moved a draw"
        rows = self._llm.drafting.budget.nodes + 1
        difference = explain(self._llm.target, tokens, plain.tokens, drafted.tokens, rows)
        if difference is None or not difference.near_tie:
            return False, difference, f"NO: from token {at}"
        return (
            False,
            difference,
            f"up to token {at}, a near-tie: the top two logits are {difference.gap:.2g} apart, "
            f"batch noise is {difference.noise:.2g}",
        )

    def _decode(self, tokens: list[int], *, plain: bool) -> tuple[Generation, bool]:
        stream = self._llm.stream(tokens, plain=plain, **self._request)
        interrupted = False
        try:
            for piece in stream:
                if not self._as_json:
                    self._print_piece(piece)
        except KeyboardInterrupt:
            interrupted = True
        finally:
            stream.close()
        generation = stream.result()
        if not self._as_json and not generation.text.endswith("\n"):
            self._out.file.write("\n")
            self._out.file.flush()
        return generation, interrupted

    def _print_piece(self, piece: Piece) -> None:
        if not self._show_sources:
            self._out.file.write(piece.text)
        elif self._out.color_system is not None:
            for text, source in piece.parts:
                self._out.print(text, style=COLOURS.get(source), end="")
        else:
            for text, source in piece.parts:
                self._out.file.write(text if source == "target" else f"[{source}:{text}]")
        self._out.file.flush()

    def _heading(self, text: str) -> None:
        if not self._as_json:
            self._out.file.flush()
            self._err.print(f"--- {text} ---", style="bold")

    def _print_summary(self, generation: Generation) -> None:
        stats = generation.stats
        parts = [f"{generation.n_tokens} tokens, {generation.tokens_per_second:.1f} tokens/s"]
        if stats.drafted:
            shares = ", ".join(
                f"{name} {source.accepted}/{source.drafted}" for name, source in stats.by_source.items()
            )
            parts.append(f"acceptance rate {ratio(stats.acceptance_rate)} ({shares})")
            parts.append(f"acceptance length {ratio(stats.acceptance_length)}")
        self._err.print("; ".join(parts), style="dim")

    def _record(self, generation: Generation, interrupted: bool) -> dict[str, Any]:
        stats = generation.stats
        return {
            "text": generation.text,
            "tokens": list(generation.tokens),
            "stop_reason": "interrupted" if interrupted else generation.stop_reason,
            "n_prompt": generation.n_prompt,
            "n_tokens": generation.n_tokens,
            "prompt_seconds": generation.prompt_seconds,
            "seconds": generation.seconds,
            "tokens_per_second": generation.tokens_per_second,
            "stats": stats.as_dict(),
        }

    def _provenance(self) -> dict[str, Any]:
        return provenance(self._llm, self._request)

    def _print_json(self, record: dict[str, Any]) -> None:
        json.dump(record, sys.stdout)
        sys.stdout.write("\n")
