"""A loaded model and what drafts for it, as its user holds it: `generate` and `stream`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING, Any

from paceline.core import typed
from paceline.core.account import Account
from paceline.core.decode import decode, start
from paceline.core.errors import UsageError
from paceline.core.policy import Fixed, Policy
from paceline.core.ports import NO_BUDGET, Drafter
from paceline.core.record import Logprob, Stats, StopReason
from paceline.core.sampling import Sampling
from paceline.core.settings import Drafting, checked
from paceline.drafters.none import NoDrafter
from paceline.engines.chat import conversation
from paceline.engines.grammar import TextGrammar
from paceline.engines.stream import TextStream
from paceline.engines.syntax import Schema, chosen

if TYPE_CHECKING:
    from paceline.engines.llama import LlamaTarget
    from paceline.machine.remembered import Remembered


PLAIN = Fixed(NO_BUDGET)


@dataclass(frozen=True)
class Piece:
    """What one step added: text, with the source of each part; and the tokens, with theirs, and with their
    log-probabilities where the request asked for them."""

    text: str
    parts: tuple[tuple[str, str], ...]
    tokens: tuple[int, ...]
    sources: tuple[str, ...]
    logprobs: tuple[Logprob, ...] = ()


@dataclass(frozen=True)
class Generation:
    """seconds: from the first draft to the last token; prompt_seconds: the target's prompt before it.
    stop_reason: None where the stream was left early. logprobs: one a token where the request asked for them.
    complete: whether the text matches the request's grammar; None without one. account: what the policy has
    to say for itself, of all requests so far; None where it decides nothing."""

    text: str
    tokens: tuple[int, ...]
    stop_reason: StopReason | None
    n_prompt: int
    n_tokens: int
    prompt_seconds: float
    seconds: float
    stats: Stats = field(repr=False)
    logprobs: tuple[Logprob, ...] = field(default=(), repr=False)
    complete: bool | None = None
    account: Account | None = field(default=None, repr=False)

    @property
    def tokens_per_second(self) -> float:
        return self.n_tokens / self.seconds if self.seconds > 0 else 0.0


class Stream(Iterator[Piece]):
    """Pieces as they are decoded; `result()` at any point tells what there is so far."""

    def __init__(
        self,
        llm: LLM,
        prompt: Sequence[int],
        drafter: Drafter,
        policy: Policy,
        remembered: Remembered | None,
        **request: Any,
    ) -> None:
        self._text = TextStream(llm.target.text.piece, request.pop("stop"))
        self._prompt = prompt
        self._grammar: TextGrammar | None = request["grammar"]
        self._parts: list[str] = []
        self._tokens: list[int] = []
        self._sources: list[str] = []
        self._logprobs: list[Logprob] = []
        began = perf_counter()
        self._request = start(llm.target, drafter, prompt, stop=self._text, **request)
        self._prompt_seconds = perf_counter() - began
        self._seconds = 0.0  # in the loop only: what the reader of the stream does between steps is not ours
        self._policy = policy
        self._steps = decode(llm.target, drafter, policy, [self._request])
        self._closed = False
        self._remembered = remembered

    def __next__(self) -> Piece:
        if self._closed:
            raise StopIteration
        began = perf_counter()
        try:
            _, step = next(self._steps)
        except BaseException:
            self.close()
            raise
        self._seconds += perf_counter() - began
        self._tokens += step.tokens
        self._sources += step.sources
        self._logprobs += step.logprobs
        taken = self._text.take() if step.stop_reason is None else self._text.finish()
        if step.stop_reason is not None:
            self.close()
        parts = tuple((text, self._sources[min(index, len(self._sources) - 1)]) for text, index in taken)
        text = "".join(part for part, _ in parts)
        self._parts.append(text)
        return Piece(text, parts, step.tokens, step.sources, step.logprobs)

    def __enter__(self) -> Stream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        # A loop over the stream that was left with `break` gives its session back here.
        if hasattr(self, "_closed"):
            self.close()

    def close(self) -> None:
        """Give the session back; the text so far stays. Called by itself at the end."""
        if not self._closed:
            self._closed = True
            self._parts += (
                [text for text, _ in self._text.finish()] if self._request.stop_reason is None else []
            )
            self._request.close()
            if self._remembered is not None:
                self._remembered.add(self._tokens)

    def result(self) -> Generation:
        text = "".join(self._parts)
        return Generation(
            text=text,
            tokens=tuple(self._tokens),
            stop_reason=self._request.stop_reason,
            n_prompt=len(self._prompt),
            n_tokens=len(self._tokens),
            prompt_seconds=self._prompt_seconds,
            seconds=self._seconds,
            stats=self._request.stats,
            logprobs=tuple(self._logprobs),
            account=self._policy.account,
            complete=None if self._grammar is None else self._grammar.syntax.matches(text),
        )


class LLM:
    """A target and what drafts for it. Close it, or use it as a context manager."""

    def __init__(
        self,
        target: LlamaTarget,
        drafter: Drafter,
        drafting: Drafting,
        draft: LlamaTarget | None = None,
        remembered: Remembered | None = None,
        corpora: Any = None,
        policy: Policy | None = None,
    ) -> None:
        self.target = target
        self.draft = draft
        self.drafter = drafter
        self.drafting = drafting
        self.remembered = remembered
        self.corpora = corpora  # what the drafter was made with, for whoever makes another like it
        self.policy = policy or Fixed(drafting.budget)
        self._closing: list[Callable[[], None]] = []

    def on_close(self, call: Callable[[], None]) -> None:
        """Call it before the models are freed."""
        self._closing.append(call)

    def tokens(self, prompt: str | Sequence[int]) -> list[int]:
        """The prompt as tokens; what is no text is taken to be tokens already."""
        if isinstance(prompt, str):
            return self.target.text.encode(typed.text("the prompt", prompt))
        if isinstance(prompt, bytes | Mapping) or not isinstance(prompt, Iterable):
            raise typed.refusal("the prompt", prompt, "text, or a list of token ids")
        return [typed.whole("the prompt: token", token) for token in prompt]

    def chat_tokens(self, prompt: str | Sequence[Mapping[str, str]]) -> list[int]:
        """A user's message, or a conversation of messages with `role` and `content`, in the model's chat
        template; ModelError without a usable one, UsageError for what is no conversation."""
        text, vocab = self.target.text, self.target.vocab
        # A template spells BOS itself, as a rule.
        tokens = text.encode(text.render(conversation(prompt)), special=True, add_bos=False)
        if vocab.add_bos and vocab.bos is not None and tokens[:1] != [vocab.bos]:
            tokens.insert(0, vocab.bos)
        return tokens

    def stream(
        self,
        prompt: str | Sequence[int],
        *,
        max_tokens: int = 256,
        seed: int = 0,
        stop: Sequence[str] = (),
        ignore_eos: bool = False,
        plain: bool = False,
        json_schema: Schema | None = None,
        regex: str | None = None,
        logprobs: int | None = None,
        remember: bool = True,
        **sampling: Any,
    ) -> Stream:
        """Decode `prompt` (text or token ids), yielding a Piece a step.

        sampling: the fields of Sampling (temperature, top_k, top_p, min_p, repeat_penalty, ...).
        plain: without drafts. json_schema or regex: what the whole text must match. logprobs: tell every
        token's log-probability and the likeliest so many tokens; the target's own, before any sampler.
        remember: keep the answer for later drafts, where the model was loaded to (load's `remember`).
        Raises UsageError for an empty or too long prompt, values out of range and an unusable grammar.
        """
        max_tokens, seed = typed.whole("max_tokens", max_tokens), typed.whole("seed", seed)
        for name, flag in (("ignore_eos", ignore_eos), ("plain", plain), ("remember", remember)):
            typed.truth(name, flag)
        settings = checked(Sampling, sampling)
        if (last := max(settings.logit_bias, default=0)) >= self.target.vocab.size:
            raise UsageError(
                f"logit bias for token {last}: the model's tokens are 0 to {self.target.vocab.size - 1}"
            )
        if seed < 0:
            raise typed.refusal("seed", seed, "at least 0")
        if logprobs is not None:
            logprobs, most = typed.whole("logprobs", logprobs), self.target.vocab.size
            if not 0 <= logprobs <= most:
                raise typed.refusal("logprobs", logprobs, f"between 0 and the model's {most} tokens")
        syntax = chosen(json_schema, regex)
        return Stream(
            self,
            self.tokens(prompt),
            NoDrafter() if plain else self.drafter,
            PLAIN if plain else self.policy,
            self.remembered if remember and not plain else None,
            max_tokens=max_tokens,
            seed=seed,
            stop=typed.texts("stop", stop),
            ignore_eos=ignore_eos,
            sampling=settings,
            rule=self.drafting.verify,
            grammar=None if syntax is None else TextGrammar(syntax, self.target.trie),
            logprobs=logprobs,
        )

    def generate(self, prompt: str | Sequence[int], **request: Any) -> Generation:
        """As `stream`, all at once."""
        with self.stream(prompt, **request) as stream:
            for _ in stream:
                pass
        return stream.result()

    def close(self) -> None:
        """Free the models. Calling it twice is harmless."""
        while self._closing:
            self._closing.pop()()
        self.drafter.close()
        self.target.close()
        if self.remembered is not None:
            self.remembered.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
