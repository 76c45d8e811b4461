"""Conversations in files: a JSON list of messages, each with `role` and `content`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, Any

from paceline.cli.options import PROMPT, option
from paceline.cli.texts import read_text
from paceline.speculative import validation as typed
from paceline.speculative.errors import PacelineError, UsageError

Message = dict[str, str]
Messages = Annotated[
    Path | None,
    option(
        PROMPT,
        "--messages",
        "FILE",
        "Begin with a conversation: a JSON list of messages with role and content.",
        env=False,
    ),
]
System = Annotated[
    str | None, option(PROMPT, "--system", "TEXT", "A system prompt: how the model is to answer.")
]
ROLE = re.compile(r"[A-Za-z_]{1,64}")


def read(file: Path) -> list[Message]:
    """Raises UsageError for what is no conversation."""
    try:
        said = json.loads(read_text(file))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{file}: is no JSON ({error}); {FORM}") from error
    if isinstance(said, dict):
        said = said.get("messages")  # as a request to a server has it
    if not isinstance(said, list):
        raise UsageError(f"{file}: {FORM}")
    messages = [_message(f"{file}: messages[{number}]", one) for number, one in enumerate(said)]
    if any(one["role"] == "system" for one in messages[1:]):
        raise UsageError(f"{file}: a system prompt in the middle: it has to be the first message")
    return messages


FORM = 'write a list: [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]'


def _message(where: str, one: Any) -> Message:
    if not isinstance(one, dict) or not isinstance(one.get("role"), str):
        raise UsageError(f"{where}: is no object with role and content; {FORM}")
    if not ROLE.fullmatch(one["role"]):
        raise UsageError(f"{where}: its role is no word such as user, assistant or system")
    return {"role": one["role"], "content": typed.text(f"{where}: its content", one.get("content"))}


def begun(system: str | None, file: Path | None) -> list[Message]:
    """What --system and --messages begin a conversation with. Raises UsageError."""
    messages = [] if file is None else read(file)
    if system is None:
        return messages
    if messages and messages[0]["role"] == "system":
        raise UsageError(f"--system and {file}, which has a system prompt: leave out one of them")
    return [{"role": "system", "content": typed.text("--system", system)}, *messages]


def write(file: Path, messages: list[Message]) -> None:
    """Replaces a file that `read` can read, and no other. Raises PacelineError."""
    from paceline.system.whole import check_output, whole

    check_output(file, force=True)
    if file.exists():
        try:
            read(file)
        except PacelineError:
            raise UsageError(f"{file} exists, and is no conversation: choose another name") from None
    try:
        with whole(file) as part:
            part.write_text(json.dumps(messages, ensure_ascii=False, indent=1) + "\n", "utf-8")
    except OSError as error:
        raise PacelineError(f"{file}: cannot be written ({error.strerror or error})") from error
