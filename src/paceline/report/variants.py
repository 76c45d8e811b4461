"""The reports of measured variants: views, and lossy choices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import IO, Any

from paceline.report.table import Block, write_table
from paceline.speculative.printable import printable


def write_view(record: Mapping[str, Any], file: IO[str]) -> None:
    """Write the report. record: the output of `paceline views search --json`."""
    view = record["best"]
    rows = []
    for method in dict.fromkeys(score["method"] for score in record["tried"]):
        tried = [score for score in record["tried"] if score["method"] == method]
        best = max(tried, key=lambda score: score["speed"])
        left_out, figures = f"{best['left_out']} of {record['blocks']}", (best["agreement"], best["share"])
        speed = f"{best['speed']:.2f}x"
        rows.append((method, str(len(tried)), left_out, *(f"{x:.2f}" for x in figures), speed))
    columns = ("found by", "tried", "blocks left out", "guesses right", "of the weights", "speed expected")
    write_table(columns, rows, file, 1)
    file.write(
        f"\nkept: view:{view['words']}\n"
        f"On other texts {view['agreement']:.2f} of {view['judged']:,} guesses are right, for "
        f"{view['share']:.2f} of the model's weights: {record['speed']:.2f}x plain decoding is expected, "
        f"at --n-draft {record['n_draft']}.\n"
    )
    if record["speed"] <= 1.0:
        file.write("No view pays here. `auto` leaves it out after a few tries.\n")
    file.write(f"\n    paceline run -m {printable(record['model'])} -md view: PROMPT\n")


def experts_table(record: Mapping[str, Any]) -> Block:
    drafters = list(record["rows"][0]["speed"])
    names = ("plain" if name == "none" else name for name in drafters)
    columns = ("experts", *names, "perplexity", "agreement")
    rows = tuple(
        (
            f"{row['experts']} of {record['experts']}",
            *(f"{row['speed'][name]:.2f}x" for name in drafters),
            f"{row['perplexity']:.3f}",
            f"{row['agreement']:.3f}",
        )
        for row in record["rows"]
    )
    return Block("", columns, rows, 1)


def write_experts(record: Mapping[str, Any], file: IO[str]) -> None:
    """Write the report. record: the output of `paceline experts --json`."""
    experts_table(record).write(file)
    best, used = record["recommended"], record["used"]
    drafter = "" if best["drafter"] == "none" else f" --draft {best['drafter']}"
    file.write(
        f"\nSpeeds over plain decoding with {used} experts, {record['answers']} answers each; perplexity and "
        f"agreement with the whole model's likeliest tokens over {record['text_tokens']:,} tokens.\n"
    )
    if best["experts"] == used:
        file.write(f"No number of experts is faster within {record['bound']:.0%} of the perplexity.\n")
    else:
        file.write(
            f"Within {record['bound']:.0%} of the perplexity, {best['experts']} experts are the fastest "
            f"({best['speed']:.2f}x). This changes what the model says:\n"
        )
    lossy = "" if best["experts"] == used else f" --lossy experts={best['experts']}"
    file.write(f"\n    paceline run -m {printable(record['model'])}{lossy}{drafter} PROMPT\n")


def prefill_table(record: Mapping[str, Any]) -> Block:
    columns = ("computed", "tokens", "first token after", "agreement", "perplexity", "same answers")
    rows = tuple(
        (
            "all" if row["share"] == 1.0 else f"{row['share']:.0%}",
            f"{row['computed']:.0f}",
            f"{row['first_token']:.2f}",
            f"{row['agreement']:.3f}",
            f"{row['rise']:+.1%}",
            f"{row['same_answers']} of {record['prompts']}",
        )
        for row in record["rows"]
    )
    return Block("", columns, rows, 1)


def write_prefill(record: Mapping[str, Any], file: IO[str]) -> None:
    """Write the report. record: the output of `paceline prefill --json`."""
    prefill_table(record).write(file)
    file.write(
        f"\n{record['prompts']} prompts of {record['prompt_tokens']:,.0f} tokens on average "
        f"({record['suite']}). The time to the first token is a share of the whole prompt's, and contains "
        "the draft's. Agreement: how often a token of the whole prompt's answer is still the likeliest.\n"
    )
    share = record["recommended"]
    if share == 1.0:
        file.write(f"No part of the prompts keeps {record['bound']:.0%} of the answers' tokens sooner.\n")
        return
    file.write(
        f"With at least {record['bound']:.0%} agreement, {share:.0%} of the prompt is the soonest. This "
        "changes what the model says:\n\n"
        f"    paceline run -m {printable(record['model'])} -md {printable(record['draft'])} "
        f"--lossy prefill={share:g} PROMPT\n"
    )
