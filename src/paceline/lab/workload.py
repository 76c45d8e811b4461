"""What is asked: suites of requests, from the package, from a file, or from another project's question file."""

from __future__ import annotations

from dataclasses import dataclass

Message = tuple[str, str | None]  # role and content


@dataclass(frozen=True)
class Item:
    """One request: a `prompt` to complete, or chat `messages` (role, content) in order, the last one the user's.

    An assistant's content may be None: it is then what the model answered to the item before it in the session.
    session: items that share it (not "") follow each other in it, in order. size: "tiny" or "full"; "" fits any.
    """

    id: str
    category: str
    prompt: str = ""
    messages: tuple[Message, ...] = ()
    max_tokens: int = 128
    seed: int = 0
    session: str = ""
    size: str = ""
