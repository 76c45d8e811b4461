"""A loaded model and what drafts for it, as its user holds it: `generate` and `stream`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any, Unpack, overload

from paceline.backends.interface import Backend
from paceline.config import Drafting, validate_drafting
from paceline.engine import InferenceEngine, OnPrefill, Stream
from paceline.request_handle import Generation, RequestHandle
from paceline.request_options import RequestOptions, SamplingSettings
from paceline.speculative import validation as typed
from paceline.speculative.errors import BatchError, ContextError, UsageError
from paceline.speculative.interfaces import UNLIMITED, Drafter
from paceline.speculative.policy.interface import DraftPolicy, FixedPolicy
from paceline.speculative.request import GenerationRequest
from paceline.speculative.sampling import Sampling
from paceline.text.chat_template import control_text, encode_chat
from paceline.text.grammar_check import parse_grammar
from paceline.text.grammar_source import Schema
from paceline.text.messages import Prompt, parse_messages, parse_tools, template_variables, texts_in
from paceline.text.tools import formats as tool_formats
from paceline.text.tools.support import ToolSupport, adapt_messages, detect_tool_support

if TYPE_CHECKING:
    from paceline.storage.remembered import AnswerHistory


MIN_SCANNED_CHARACTERS = 1 << 16  # characters that are always looked at


class LLM:
    """A target and what drafts for it. Close it, or use it as a context manager.

    Threads may share it: each step of a request is one thread's turn. Where `load` was given fewer sessions
    than there are requests, they wait for each other; a thread that has a stream open itself does not wait,
    and gets a BusyError. A forked process cannot use it."""

    def __init__(
        self,
        target: Backend,
        drafter: Drafter,
        drafting: Drafting,
        draft: Backend | None = None,
        remembered: AnswerHistory | None = None,
        corpora: Any = None,
        policy: DraftPolicy | None = None,
    ) -> None:
        self.target = target
        self.draft = draft
        self.drafter = drafter
        self.drafting = drafting
        self.history = remembered
        self.corpora = corpora  # what the drafter was made with, for whoever makes another like it
        self.policy = policy or FixedPolicy(drafting.budget)
        self._closing: list[Callable[[], None]] = []
        self.engine = InferenceEngine(
            target, drafter, self.policy, rule=drafting.verify, remembered=remembered
        )

    def on_close(self, call: Callable[[], None]) -> None:
        """Call it before the models are freed."""
        self._closing.append(call)

    def tokens(self, prompt: str | Sequence[int]) -> list[int]:
        """The prompt as tokens; what is no text is taken to be tokens already."""
        if isinstance(prompt, str):
            self._require_room(prompt)
            return self.target.text.encode(typed.text("the prompt", prompt))
        if isinstance(prompt, bytes | Mapping) or not isinstance(prompt, Iterable):
            raise typed.require("the prompt", prompt, "text, or a list of token ids")
        return [typed.integer("the prompt: token", token) for token in prompt]

    @cached_property
    def max_text_bytes(self) -> int:
        """Bytes that a text in the context may have: as if it were all of the longest token."""
        text, vocab = self.target.text, self.target.vocab
        return self.target.caps.n_ctx * max(len(text.piece(token)) for token in range(vocab.size))

    def _require_room(self, value: Any) -> None:
        """Raises ContextError for texts that cannot fit whatever their tokens are, before any is looked for:
        that takes minutes where a file was named by mistake, or somebody means it."""
        n = sum(map(len, texts_in(value)))
        if n > MIN_SCANNED_CHARACTERS and n > self.max_text_bytes:
            raise ContextError(
                f"the prompt has {n:,} characters; the context of {self.target.caps.n_ctx:,} tokens has room "
                f"for {self.max_text_bytes:,} at most: shorten it or ask for a larger context (n_ctx, -c)"
            )

    def control_text(self, text: str) -> str:
        """The first of the model's control tokens that a text contains (<|im_end|>); "" where there is none.
        A prompt that is text never means one."""
        return control_text(self.target.text, self.target.vocab, text)

    @property
    def has_chat_template(self) -> bool:
        """Whether the model has a chat template: it is an instruct model."""
        return self.target.text.has_chat_template

    @cached_property
    def tool_support(self) -> ToolSupport:
        """Whether the model's chat template makes use of tools, and how the model writes calls."""
        return detect_tool_support(self.target.text)

    def chat_tokens(
        self,
        prompt: Prompt,
        tools: Iterable[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        *,
        answer: str = "",
    ) -> list[int]:
        """A user's message, or a conversation in OpenAI's form (`role`, `content`, `tool_calls`, ...), in the
        model's chat template; ModelError without a usable one, UsageError for what is no conversation. Where
        a message or a tool contains a control token (<|im_end|>), that is text and ends nothing.

        tools: functions that the model may call. Where its template makes no use of them, they are described
        in the system message. chat_template_kwargs: what else the template is told (enable_thinking,
        documents). answer: what the answer begins with, control tokens and all."""
        text, vocab = self.target.text, self.target.vocab
        messages, functions = parse_messages(prompt), parse_tools(tools)
        variables = template_variables(chat_template_kwargs)
        self._require_room([messages, functions, variables])
        if functions or any(one["role"] == "tool" or "tool_calls" in one for one in messages):
            messages, given = adapt_messages(self.tool_support, messages, functions)
        else:
            given = None
        tokens = encode_chat(text, vocab, messages, given, variables, answer=typed.text("answer", answer))
        # A template spells BOS itself, as a rule.
        if vocab.add_bos and vocab.bos is not None and tokens[:1] != [vocab.bos]:
            tokens.insert(0, vocab.bos)
        return tokens

    @cached_property
    def visible_control_tokens(self) -> Mapping[int, bytes]:
        """What `stream` takes as `spelled` for an answer that is read for calls."""
        return tool_formats.visible_control_tokens(
            self.target.text, self.target.vocab, self.tool_support.format
        )

    def stream(
        self,
        prompt: str | Sequence[int],
        *,
        on_prefill: OnPrefill | None = None,
        **options: Unpack[RequestOptions],
    ) -> Stream:
        """Decode `prompt` (text or token ids), yielding a StepOutput a step.

        on_prefill: called before, between and after the passes that prefill a long prompt, with the tokens
        so far and of all. What it raises ends the stream.
        options: see `request`, which also says what is raised.
        """
        return self.engine.run_inline(self.request(prompt, **options), on_prefill)

    def request(
        self,
        prompt: str | Sequence[int],
        *,
        stop: str | Sequence[str] = (),
        plain: bool = False,
        json_schema: Schema | None = None,
        regex: str | None = None,
        spelled: Mapping[int, bytes] | None = None,
        max_tokens: int = 256,
        seed: int = 0,
        ignore_eos: bool = False,
        logprobs: int | None = None,
        remember: bool = True,
        **sampling: Unpack[SamplingSettings],
    ) -> GenerationRequest:
        """Make the request that `stream` decodes.

        max_tokens: the most tokens of the answer. seed: of what is drawn.
        stop: texts that end the answer. ignore_eos: go on after the end of text.
        plain: without drafts. json_schema or regex: what the whole text must match.
        logprobs: the log-probability of every token and of so many of the likeliest; the target's own,
        before any sampler.
        remember: keep the answer for later drafts, where the model was loaded to (load's `remember`).
        spelled: control tokens that are text all the same, with that text (`tool_spelling`).
        sampling: the fields of Sampling (temperature, top_k, top_p, min_p, repeat_penalty, ...).
        Raises UsageError for an empty or too long prompt, values out of range and an unusable grammar.
        """
        return GenerationRequest(
            prompt=self.tokens(prompt),
            max_tokens=max_tokens,
            sampling=validate_drafting(Sampling, sampling),
            seed=seed,
            stop=typed.text_list("stop", stop),
            ignore_eos=ignore_eos,
            grammar=parse_grammar(json_schema, regex),
            logprobs=logprobs,
            n_draft=0 if typed.boolean("plain", plain) else UNLIMITED,
            remember=remember,
            visible_control_tokens=spelled or {},
        )

    @overload
    def generate(
        self, prompt: list[str] | list[list[int]], **request: Unpack[RequestOptions]
    ) -> list[Generation]: ...

    @overload
    def generate(
        self,
        prompt: str | Sequence[int],
        *,
        on_prefill: OnPrefill | None = None,
        **request: Unpack[RequestOptions],
    ) -> Generation: ...

    def generate(
        self, prompt: Any, *, on_prefill: OnPrefill | None = None, **request: Unpack[RequestOptions]
    ) -> Generation | list[Generation]:
        """Decode as `stream` does, all at once.

        A list of prompts is a batch, the empty list too. They are decoded together, as many at a time as
        there are `sessions`, each to what it would be alone. If some of them fail, a BatchError with the
        answers to the others is raised at the end; if all do, the first error.
        """
        if isinstance(prompt, list) and not prompt:
            return []
        batch = isinstance(prompt, list | tuple) and len(prompt) > 0
        if batch and all(isinstance(one, str | list | tuple) for one in prompt):
            if on_prefill is not None:
                raise UsageError("on_prefill is told of one prompt: give one, or leave it out")
            return self._generate_all(prompt, **request)
        with self.stream(prompt, on_prefill=on_prefill, **request) as stream:
            for _ in stream:
                pass
        return stream.result()

    def _generate_all(self, prompts: Sequence[Any], **request: Unpack[RequestOptions]) -> list[Generation]:
        errors, handles = dict[int, Exception](), dict[int, RequestHandle]()
        run = self.engine.run_batch()
        try:
            for at, prompt in enumerate(prompts):
                try:
                    handles[at] = run.add(self.request(prompt, **request))
                except Exception as error:
                    errors[at] = error
            while not run.is_over:
                run.step()
        finally:
            with self.engine.exclusive():
                run.close()
        for at, handle in handles.items():
            if handle.finish is not None and handle.finish.error is not None:
                errors[at] = handle.finish.error
        if errors and len(errors) == len(prompts):
            raise errors[0]
        with self.engine.exclusive():
            account = self.policy.summary
        done = {at: handle.result(account) for at, handle in handles.items() if at not in errors}
        if errors:
            raise BatchError([done.get(at) for at in range(len(prompts))], errors) from errors[min(errors)]
        return [done[at] for at in range(len(prompts))]

    def close(self) -> None:
        """Free the models. Calling it twice is harmless; in a forked process it does nothing."""
        if not self.engine.process.is_current:
            return
        with self.engine.exclusive():
            while self._closing:
                self._closing.pop()()
            self.drafter.close()
            self.target.close()
            if self.history is not None:
                self.history.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
