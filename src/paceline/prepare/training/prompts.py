"""Prompts to train draft heads on, from files or suites, split into training and held-out prompts.

A JSON record is a conversation (`messages`, `conversations` or the user's `turns`) or one prompt (`prompt` or
`text`). Recorded answers are left open, since the target answers every turn itself. They are kept beside tool
messages, which belong to them."""

from __future__ import annotations

import hashlib
import json
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any

from paceline.bench.jsonl import LineError, object_of, raw_lines
from paceline.bench.suites import workload
from paceline.bench.suites.workload import Item, Message
from paceline.prepare.documents import DocumentReader, Skipped, SourceFile, find
from paceline.speculative.errors import UsageError
from paceline.speculative.validation import invalid
from paceline.system.home import compute_sha256
from paceline.text.records import ASSISTANT, RAW, REASONING, record_parts

HELD_OUT = 0.05  # share of the conversations
RECORD_SUFFIXES = (".jsonl", ".json", ".ndjson")
FOLDER_GLOBS = tuple(f"*{suffix}" for suffix in (*RECORD_SUFFIXES, ".txt"))
SHAPES = '{"prompt": ...}, {"text": ...}, {"messages": [...]}, {"conversations": [...]} or {"turns": [...]}'


@dataclass(frozen=True)
class PromptSource:
    """A file of prompts, its SHA-256, and the number of its prompts with duplicates."""

    path: str
    sha256: str
    prompts: int


@dataclass(frozen=True)
class TrainingPrompts:
    """Different prompts in random order, so that the first ones are a random sample. The order depends on the
    ends of their hashes and the split on the beginnings, so that the two are independent.
    items: `id` is the prompt's hash, `session` that of its conversation's first turn, and `category` the
    place in its file. chat: prompts go through the chat template. held_out: share of conversations."""

    items: tuple[Item, ...]
    sources: tuple[PromptSource, ...]
    chat: bool
    held_out: float = HELD_OUT
    skipped: Skipped = field(default_factory=Skipped)

    def held_out_ids(self, tokens: Mapping[str, int], min_tokens: int) -> set[str]:
        """Return the prompts that are kept from training, of those with so many `tokens` of answer.
        Conversations are held out if the hash of their first turn is below the share, and a few more or fewer
        if one side had less than `min_tokens`. Raises UsageError if both cannot have these."""
        sizes = Counter[str]()
        for item in self.items:
            if item.id in tokens:
                sizes[item.session] += tokens[item.id]
        order = sorted(sizes)
        wanted = sum(int(session[:16], 16) < self.held_out * 2.0**64 for session in order)
        sums = [0, *accumulate(sizes[session] for session in order)]
        enough = [n for n, left_out in enumerate(sums) if min_tokens <= min(left_out, sums[-1] - left_out)]
        if not enough:
            raise UsageError(
                f"{len(tokens):,} answers of up to {sums[-1]:,} tokens are too few: a training needs "
                f"{min_tokens:,}, and as many held out: give more prompts (--data), longer answers (-n), or "
                "more time (--answer-minutes)"
            )
        held_out = set(order[: min(enough, key=lambda n: abs(n - wanted))])
        return {item.id for item in self.items if item.id in tokens and item.session in held_out}


def read_prompts(
    files: Sequence[Path], suite: str = "", *, chat: bool, held_out: float = HELD_OUT
) -> TrainingPrompts:
    """Read the prompts of files, folders and the suites of `paceline bench`. Raises UsageError for none.
    chat: the target has a chat template, and a prompt is a user's message; else it is a text to complete."""
    if not 0.0 < held_out < 1.0:
        raise invalid("held_out (--held-out)", held_out, "a share above 0 and below 1")
    skipped, sources, items = Skipped(), list[PromptSource](), dict[str, Item]()
    given = [*_file_items(files, chat, skipped), *(_suite_items(suite) if suite else ())]
    for path, found in given:
        sources.append(PromptSource(str(path), compute_sha256(path), len(found)))
        for item in found:
            if items.setdefault(item.id, item) is not item:
                skipped.add("duplicate", item.category)
    if not items:
        raise UsageError("no prompts to train on: name files or folders (--data) or a suite (--suite)")
    ordered = sorted(items.values(), key=lambda item: (item.session[::-1], len(item.messages)))
    return TrainingPrompts(tuple(ordered), tuple(sources), chat, held_out, skipped)


def prompt_id(messages: Sequence[Message]) -> str:
    return hashlib.sha256(json.dumps(messages).encode()).hexdigest()[:32]


def _file_items(paths: Sequence[Path], chat: bool, skipped: Skipped) -> Iterator[tuple[Path, Sequence[Item]]]:
    files, _ = find(paths, (), FOLDER_GLOBS, skipped)
    for file in files:
        bad, items = Skipped(), list[Item]()
        for where, conversation in _conversations(file, bad):
            items += _turns(f"{file.path}, {where}", conversation, chat)
        if not items:
            why = "".join(f" ({reason}: {example})" for reason, example in bad.examples.items())
            raise UsageError(
                f"{file.path}: has no prompt{why}; give lines such as {SHAPES}, or a text with a prompt a "
                "paragraph (.txt)"
            )
        skipped.counts += bad.counts
        skipped.examples = bad.examples | skipped.examples
        yield file.path, items


def _conversations(file: SourceFile, bad: Skipped) -> Iterator[tuple[str, list[Message] | str]]:
    """Yield the messages, or the text, of each prompt of a file, with its place."""
    if file.path.suffix not in RECORD_SUFFIXES:
        for text in DocumentReader(bad).documents(replace(file, log=False)):
            assert isinstance(text, str)
            parts = _paragraphs(text) if file.path.suffix == ".txt" else [(1, text)]
            yield from ((f"line {number}", part) for number, part in parts)
        return
    for where, record in _records(file.path, bad):
        if found := _messages(record):
            yield where, found
        else:
            bad.add("record without a prompt", f"{file.path}, {where}")


def _paragraphs(text: str) -> Iterator[tuple[int, str]]:
    """Yield the paragraphs, which blank lines separate, each with the number of its first line."""
    for is_blank, lines in groupby(enumerate(text.split("\n"), 1), lambda line: not line[1].strip()):
        if not is_blank:
            numbers, parts = zip(*lines, strict=True)
            yield numbers[0], "\n".join(parts)


def _records(path: Path, bad: Skipped) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the records of JSON lines, or of a JSON array."""
    try:
        with path.open("rb") as stream:
            is_array = stream.read(64).lstrip(BOM_UTF8 + b" \t\r\n").startswith(b"[")
        values = json.loads(path.read_bytes()) if is_array else ()
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path}: cannot be read as JSON ({error}); give JSON lines") from error
    for number, value in enumerate(values, 1):
        if isinstance(value, dict):
            yield f"record {number}", value
        else:
            bad.add("no JSON object", f"{path}, record {number}")
    for line in () if is_array else raw_lines(path):
        try:
            yield f"line {line.number}", object_of(line)
        except LineError as error:
            bad.add("unusable line", f"{path}, line {line.number} {error}")


def _messages(record: Mapping[str, Any]) -> list[Message] | str:
    """Return the conversation of a record, or its single prompt; empty without one."""
    turns = record.get("turns")
    if isinstance(turns, list) and all(isinstance(turn, str) and turn.strip() for turn in turns):
        return [message for turn in turns for message in (("user", turn), (ASSISTANT, None))]
    parts = [(role, text) for role, text in record_parts(dict(record)) if isinstance(text, str)]
    if not any(role not in (ASSISTANT, REASONING, "system") for role, _ in parts):
        text = record.get("text")
        return text if isinstance(text, str) and text.strip() else ""
    if parts[0][0] == RAW:
        return parts[0][1]
    usual = all(role in ("system", "user", ASSISTANT, REASONING) for role, _ in parts)
    out = list[Message]()
    for role, text in parts:
        if role == ASSISTANT:
            out.append((role, None if usual else text))
        elif role != REASONING:
            out.append((role if role == "system" else "user", text))
    return out


def _turns(where: str, conversation: list[Message] | str, chat: bool) -> Iterator[Item]:
    """Yield an item for every message of the user that the model is to answer."""
    if isinstance(conversation, str):
        id_ = prompt_id([("user", conversation)])
        messages: tuple[Message, ...] = (("user", conversation),) if chat else ()
        yield Item(id_, where, "" if chat else conversation, messages, session=id_)
        return
    past, earlier = list[Message](), list[str]()
    for role, content in [*conversation, (ASSISTANT, None)]:
        if role == ASSISTANT:
            if past and past[-1][0] == "user":
                id_ = prompt_id(past)
                session, before = (earlier or [id_])[0], tuple(earlier)
                yield Item(id_, where, "", tuple(past), session=session, earlier=before)
                earlier.append(id_)
                past.append((role, content))
        elif past and past[-1][0] == role:  # templates want the roles to take turns
            past.append((role, f"{past.pop()[1]}\n\n{content}"))
        else:
            past.append((role, content))


def _suite_items(suite: str) -> Iterator[tuple[Path, Sequence[Item]]]:
    """Yield the items of each of the suites, with the hashes of their prompts for ids."""
    for name in workload.suite_names(suite):
        path, _ = workload.suite_file(name)
        items = workload.load(name)
        ids = {item.id: prompt_id(item.messages or [("user", item.prompt)]) for item in items}
        out = []
        for item in items:
            earlier = tuple(ids[id_] for id_ in item.earlier)
            session = (earlier or (ids[item.id],))[0]
            place = f"{name}, {item.id}"
            out.append(replace(item, id=ids[item.id], category=place, session=session, earlier=earlier))
        yield path, out
