"""Line formats of suite files: our fields, other projects' questions, or recorded conversations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from paceline.bench.suites.workload import Item, Message
from paceline.text.records import ASSISTANT, REASONING, record_parts

# Placeholder of SPEED-Bench for a text that it may not redistribute: TURNS_PLACEHOLDER in
# examples/specdec_bench of github.com/NVIDIA/Model-Optimizer.
TO_BE_FETCHED = "FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE USING SPECDEC_BENCH"
DEFAULT_MAX_TOKENS = 256  # other projects' files have none


class SuiteMessage(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    role: Literal["system", "user", "assistant"]
    content: str | None

    @model_validator(mode="after")
    def _check(self) -> SuiteMessage:
        if self.content is None and self.role != "assistant":
            raise ValueError("only an assistant's content may be left open")
        return self


class OwnItem(BaseModel):
    """The fields of `Item`, of which a prompt or messages are required."""

    model_config = ConfigDict(extra="forbid", strict=True)

    id: str = Field("", min_length=1)
    category: str = Field("", min_length=1)
    prompt: str = ""
    messages: list[SuiteMessage] = []
    max_tokens: int = Field(128, ge=2)
    seed: int = Field(0, ge=0)
    session: str = ""
    size: Literal["", "tiny", "full"] = ""

    @model_validator(mode="after")
    def _check(self) -> OwnItem:
        last = self.messages[-1].role if self.messages else "user"
        if bool(self.prompt) == bool(self.messages) or last != "user":
            raise ValueError("give either a prompt, or messages of which the last is the user's")
        return self

    def items(self, stem: str, number: int) -> Iterator[Item]:
        messages = tuple((message.role, message.content) for message in self.messages)
        fields = self.model_dump(exclude={"messages"}, exclude_unset=True)
        yield Item(**{"id": str(number), "category": stem} | fields, messages=messages)


class Question(BaseModel):
    """The user's turns, in the fields of Spec-Bench (github.com/hemingkx/Spec-Bench) and of SPEED-Bench
    (huggingface.co/datasets/nvidia/SPEED-Bench, after its script has assembled it from parquet). Other
    fields are ignored."""

    model_config = ConfigDict(strict=True)

    question_id: int | str
    category: str = Field(min_length=1)
    turns: list[Annotated[str, Field(pattern=r"\S")]] = Field(min_length=1)

    @field_validator("turns")
    @classmethod
    def _check(cls, turns: list[str]) -> list[str]:
        if any(turn.startswith(TO_BE_FETCHED) for turn in turns):
            raise ValueError("a turn is still to be fetched; run prepare_data.py of SPEED-Bench first")
        return turns

    def items(self, _: str, __: int) -> Iterator[Item]:
        """Yield an item per turn. Several turns are a session with the model's answers in between."""
        id_, several = str(self.question_id), len(self.turns) > 1
        messages: list[Message] = []
        for turn, text in enumerate(self.turns, 1):
            messages.append(("user", text))
            name, session = (f"{id_}.{turn}", id_) if several else (id_, "")
            past, n = tuple(messages), DEFAULT_MAX_TOKENS
            yield Item(name, self.category, messages=past, max_tokens=n, session=session)
            messages.append(("assistant", None))


def session_items(data: dict[str, Any], number: int) -> Iterator[Item]:
    """Yield an item for every answer of a recorded conversation, with the messages before it. Tool messages
    become user messages, and adjacent messages of one role are joined."""
    name = str(data.get("id", number))
    joined: list[Message] = []
    turn = 0
    for role, content in record_parts(data):
        if role == REASONING or not isinstance(content, str):
            continue
        role = role if role in ("system", ASSISTANT) else "user"
        if joined and joined[-1][0] == role:
            content = f"{joined.pop()[1]}\n\n{content}"
        elif role == ASSISTANT:
            turn += 1
            if joined and joined[-1][0] == "user":
                past, n = tuple(joined), DEFAULT_MAX_TOKENS
                yield Item(f"{name}.{turn}", "agent", messages=past, max_tokens=n, session=name)
        joined.append((role, content))
