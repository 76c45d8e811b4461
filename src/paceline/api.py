"""The Python API of a loaded model and its drafters: `generate` and `stream`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, lru_cache, partial
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, overload

from paceline.backends.interface import Backend
from paceline.engine import InferenceEngine, OnPrefill, Stream
from paceline.request_handle import Generation, RequestHandle
from paceline.settings import Drafting, make_settings
from paceline.speculative import validation as typed
from paceline.speculative.errors import BatchError, ContextError, ModelError, UsageError
from paceline.speculative.interfaces import UNLIMITED, Drafter
from paceline.speculative.policy.interface import DraftPolicy, FixedPolicy
from paceline.speculative.request import GenerationRequest
from paceline.speculative.sampling import Sampling
from paceline.speculative.sampling_settings import MIROSTAT, Breakers
from paceline.text.chat_template import encode_chat
from paceline.text.detokenizer import visible_pieces
from paceline.text.grammar_source import Schema, parse_grammar
from paceline.text.messages import Message, Prompt, parse_messages, parse_tools, template_variables, texts_in
from paceline.text.token_texts import LogitBias, logit_biases, sequence_breakers
from paceline.text.tools import formats as tool_formats
from paceline.text.tools.support import ToolSupport, adapt_messages, complete_tool, detect_tool_support

if TYPE_CHECKING:
    from paceline.storage.remembered import AnswerHistory


N_END_TOKENS = 32  # more than the mark of a thought has
MIN_SCANNED_CHARACTERS = 1 << 16  # a prompt of at most this length is always tokenised


class RequestOptions(TypedDict, total=False):
    """The options of `LLM.request`, for editors and type checkers: the fields of Sampling, and others."""

    temperature: float
    top_k: int
    top_n_sigma: float
    typical_p: float
    top_p: float
    min_p: float
    xtc_probability: float
    xtc_threshold: float
    dynatemp_range: float
    dynatemp_exponent: float
    repeat_penalty: float
    presence_penalty: float
    frequency_penalty: float
    repeat_last_n: int
    dry_multiplier: float
    dry_base: float
    dry_allowed_length: int
    dry_penalty_last_n: int
    dry_sequence_breakers: Sequence[str]
    logit_bias: LogitBias
    max_tokens: int
    min_tokens: int
    seed: int
    stop: str | Sequence[str]
    ignore_eos: bool
    plain: bool
    json_schema: Schema | None
    regex: str | None
    choice: Sequence[str] | None
    grammar: str | None
    logprobs: int | None
    remember: bool
    prediction: str | Sequence[int]
    spelled: Mapping[int, bytes] | None


class LLM:
    """A target and its drafters. Close it, or use it as a context manager.

    Threads may share it, and take turns step by step. Requests beyond the sessions that `load` was given wait
    for one; a thread that has a stream open gets a BusyError instead. Forked processes cannot use it."""

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
        self.target, self.draft, self.drafter, self.drafting = target, draft, drafter, drafting
        self.role = ""  # see loading.load
        self.history = remembered
        self.corpora = corpora  # of the drafter, for further drafters
        self.policy = policy or FixedPolicy(drafting.budget)
        self._closing: list[Callable[[], None]] = []
        rule = drafting.verify
        self.engine = InferenceEngine(target, drafter, self.policy, rule=rule, remembered=remembered)

    def on_close(self, call: Callable[[], None]) -> None:
        """Register a function that `close` calls before it frees the models."""
        self._closing.append(call)

    def tokens(self, prompt: str | Sequence[int], *, special: bool = False) -> list[int]:
        """Tokenise a text, or check a list of token ids. special: control tokens in the text are such.
        Raises UsageError and ContextError."""
        if isinstance(prompt, str):
            self._require_room(prompt)
            return self.target.text.encode(typed.text("the prompt", prompt), special=special)
        tokens = typed.items("the prompt", prompt, "text, or a list of token ids")
        return [typed.integer("the prompt: token", token) for token in tokens]

    def prediction_tokens(self, prediction: str | Sequence[int]) -> tuple[int, ...]:
        """Return the tokens of a predicted answer: of its text as it follows a prompt, or as they are.
        There are at most as many as the context has."""
        n_ctx = self.target.caps.n_ctx
        if isinstance(prediction, str):
            self._require_room(prediction)
            return tuple(self.target.text.encode_continuation(typed.text("prediction", prediction))[:n_ctx])
        return tuple(typed.integer("prediction: token", token) for token in prediction[:n_ctx])

    @cached_property
    def max_text_bytes(self) -> int:
        """The bytes of a context full of the longest token."""
        text, vocab = self.target.text, self.target.vocab
        return self.target.caps.n_ctx * max(len(text.piece(token)) for token in range(vocab.size))

    def _require_room(self, value: Any) -> None:
        """Raise ContextError for texts that cannot fit, before minutes are spent on tokenising them."""
        n = sum(map(len, texts_in(value)))
        if n > MIN_SCANNED_CHARACTERS and n > self.max_text_bytes:
            raise ContextError(
                f"the prompt has {n:,} characters; the context of {self.target.caps.n_ctx:,} tokens has room "
                f"for {self.max_text_bytes:,} at most: shorten it or ask for a larger context (n_ctx, -c)"
            )

    @property
    def has_chat_template(self) -> bool:
        """True if the model has a chat template, as instruct models do."""
        return self.target.text.has_chat_template

    @cached_property
    def shows_late_system_messages(self) -> bool:
        """True if the chat template shows a system message within a conversation."""
        word = "LateSystemProbe"
        late: Message = {"role": "system", "content": word}
        around: list[Message] = [
            {"role": role, "content": "."} for role in ("system", "user", "assistant", "user")
        ]
        with suppress(ModelError):
            return word in self.target.text.render([*around, late])
        return False

    @cached_property
    def tool_support(self) -> ToolSupport:
        """The chat template's support for tools, and the format of the model's calls."""
        return detect_tool_support(self.target.text)

    def chat_tokens(
        self,
        prompt: Prompt,
        tools: Iterable[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        *,
        answer: str = "",
        continue_final: bool = False,
    ) -> list[int]:
        """Tokenise a user's message, or a conversation in OpenAI's form, by the model's chat template.

        Control tokens (<|im_end|>) in messages and tools are text.
        tools: functions that the model may call; the system message has them if the template does not.
        chat_template_kwargs: further variables of the template (enable_thinking, documents).
        answer: the beginning of the answer; it may have control tokens.
        continue_final: the last message is the assistant's, and the answer goes on with it.
        Raises ModelError without a usable template, and UsageError for an invalid conversation."""
        text, vocab = self.target.text, self.target.vocab
        messages, functions = parse_messages(prompt), parse_tools(tools)
        variables = template_variables(chat_template_kwargs)
        self._require_room([messages, functions, variables])
        template_tools = None
        if functions or any(message["role"] == "tool" or "tool_calls" in message for message in messages):
            messages, template_tools = adapt_messages(self.tool_support, messages, functions)
        answer = typed.text("answer", answer)
        going_on = typed.boolean("continue_final", continue_final)
        encode = partial(encode_chat, text, vocab, messages, answer=answer, continue_final=going_on)
        try:
            tokens = encode(template_tools, variables)
        except ModelError:
            if not template_tools:
                raise
            tokens = encode(list(map(complete_tool, template_tools)), variables)
        # Most templates have BOS already.
        if vocab.add_bos and vocab.bos is not None and tokens[:1] != [vocab.bos]:
            tokens.insert(0, vocab.bos)
        return tokens

    @cached_property
    def visible_control_tokens(self) -> Mapping[int, bytes]:
        """The argument `spelled` of `stream` for an answer that is parsed for thoughts and tool calls."""
        support = self.tool_support
        return tool_formats.visible_control_tokens(
            self.target.text, self.target.vocab, support.format, support.thought
        )

    def prompt_end(self, prompt: Sequence[int]) -> str:
        """Return the text of a prompt's last tokens, in which an open thought can be seen."""
        pieces = visible_pieces(self.target.vocab.piece, self.visible_control_tokens)
        return b"".join(map(pieces, prompt[-N_END_TOKENS:])).decode(errors="replace")

    def sampling(self, **fields: Any) -> Sampling:
        """Return the settings of a sampler, with texts as this model's tokens.

        fields: those of Sampling. logit_bias: also by text (`token_texts.logit_biases`).
        Raises UsageError for values out of range."""
        if fields.pop("mirostat", 0):
            raise UsageError(MIROSTAT)
        if "logit_bias" in fields:
            fields["logit_bias"] = logit_biases(self.target.text, fields["logit_bias"])
        sampling = make_settings(Sampling, fields)
        texts = sampling.dry_sequence_breakers if sampling.dry else ()
        return replace(sampling, dry_breakers=self._breakers(texts))

    @cached_property
    def _breakers(self) -> Callable[[tuple[str, ...]], Mapping[int, Breakers]]:
        """Returns the tokens of texts; looking through a vocabulary takes time."""
        return lru_cache(maxsize=4)(partial(sequence_breakers, self.target.text, self.target.vocab))

    def stream(
        self,
        prompt: str | Sequence[int],
        *,
        on_prefill: OnPrefill | None = None,
        **options: Unpack[RequestOptions],
    ) -> Stream:
        """Decode `prompt` (text or token ids), yielding a StepOutput for each step.

        on_prefill: called before, between and after the passes that prefill a long prompt, with the tokens
        so far and in all. An exception that it raises ends the stream.
        options: see `request`, which also has the errors; BusyError without a free session."""
        return Stream(self.engine, self.request(prompt, **options), on_prefill)

    def request(
        self,
        prompt: str | Sequence[int],
        *,
        stop: str | Sequence[str] = (),
        plain: bool = False,
        json_schema: Schema | None = None,
        regex: str | None = None,
        choice: Iterable[str] | None = None,
        grammar: str | None = None,
        spelled: Mapping[int, bytes] | None = None,
        max_tokens: int = 256,
        min_tokens: int = 0,
        seed: int = 0,
        ignore_eos: bool = False,
        logprobs: int | None = None,
        remember: bool = True,
        prediction: str | Sequence[int] = (),
        **sampling: Any,
    ) -> GenerationRequest:
        """Make the request that `stream` decodes.

        max_tokens, min_tokens: the most and the least tokens of the answer. seed: of the sampler.
        stop: texts that end the answer. ignore_eos: go on after the end of text.
        plain: without drafts. json_schema, regex, choice (texts) or grammar (GBNF): what the whole text is.
        logprobs: report the target's log-probability, before any sampler, of every token and of this many of
        the likeliest.
        remember: keep the answer for later drafts, if the model was loaded with `remember`.
        prediction: what the answer will be, as far as it is known (an edited file); drafts follow it.
        spelled: control tokens that are part of the text, with their text (`visible_control_tokens`).
        sampling: the fields of Sampling (temperature, top_k, top_p, min_p, repeat_penalty, ...); logit_bias
        has texts or token ids.
        Raises UsageError for an empty or too long prompt, values out of range and an unusable grammar."""
        return GenerationRequest(
            prompt=self.tokens(prompt),
            max_tokens=max_tokens,
            min_tokens=min_tokens,
            sampling=self.sampling(**sampling),
            seed=seed,
            stop=typed.text_list("stop", stop),
            ignore_eos=ignore_eos,
            grammar=parse_grammar(json_schema, regex, choice, grammar),
            logprobs=logprobs,
            n_draft=0 if typed.boolean("plain", plain) else UNLIMITED,
            remember=remember,
            prediction=self.prediction_tokens(prediction),
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
        """Decode as `stream` does, and return the whole answer.

        A list of prompts is a batch, the empty list too. It is decoded together, as many prompts at a time as
        there are `sessions`, with the answers of prompts alone. Raises BatchError with the other answers if
        some prompts fail, and the first error if all do."""
        if isinstance(prompt, list | tuple) and all(isinstance(one, str | list | tuple) for one in prompt):
            if on_prefill is not None:
                raise UsageError("on_prefill needs a single prompt: give one, or leave it out")
            return self._generate_all(prompt, **request)
        with self.stream(prompt, on_prefill=on_prefill, **request) as stream:
            for _ in stream:
                pass
        return stream.result()

    def _generate_all(self, prompts: Sequence[Any], **request: Unpack[RequestOptions]) -> list[Generation]:
        errors, handles = dict[int, Exception](), dict[int, RequestHandle]()
        with self.engine.run_batch() as run:
            for at, prompt in enumerate(prompts):
                try:
                    handles[at] = run.add(self.request(prompt, **request))
                except Exception as error:
                    errors[at] = error
            while not run.is_over:
                run.step()
        for at, handle in handles.items():
            if handle.finish is not None and handle.finish.error is not None:
                errors[at] = handle.finish.error
        if errors and len(errors) == len(prompts):
            raise errors[0]
        with self.engine.exclusive():
            summary = self.policy.summary
        done = {at: handle.result(summary) for at, handle in handles.items() if at not in errors}
        if errors:
            errors = dict(sorted(errors.items()))
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

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
