"""transformers as a System: plain decoding, assisted generation with a draft model, and prompt lookup.

It expands GGUF files to float32 weights, so that its passes read more memory than those of an engine with
quantised weights. Compare its speedup over its own plain decoding, not its speed."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

from paceline.backends.transformers.loading import import_libraries, load_model, load_tokenizer
from paceline.bench.system import BenchAnswer, BenchRequest, System
from paceline.models.names import is_view
from paceline.speculative.errors import BaselineError, UsageError


@dataclass
class GenerationTimer:
    """Timer of generate(): its streamer, and a hook on the target's forward pass. The first pass reads the
    prompt too, so that rows beyond it were drafted."""

    n_prompt: int
    began: float = 0.0
    times: list[float] = field(default_factory=list)  # s, of each put
    parts: list[list[int]] = field(default_factory=list)  # tokens of each pass of the target
    drafted: list[int] = field(default_factory=list)  # in each pass
    _prompt: bool = True

    def put(self, tokens: Any) -> None:
        if self._prompt:  # the first call has the prompt
            self._prompt = False
            return
        self.times.append(perf_counter() - self.began)
        self.parts.append(tokens.flatten().tolist())

    def end(self) -> None:
        """Do nothing; a streamer needs this method."""

    def hook(self, module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        rows = int(kwargs["input_ids"].shape[1])
        self.drafted.append(rows - (1 if self.drafted else self.n_prompt))


class Transformers(System):
    """A decoding method of transformers.
    drafting: "none" is plain decoding, "lookup" prompt lookup, which ignores p_min. "model" is assisted
    generation by `draft` with a constant n_draft and p_min as confidence threshold; 0 disables it.
    Raises MissingExtraError, UsageError, or ModelError if a file cannot be loaded."""

    def __init__(
        self, target: Path, draft: Path | None = None, *, name: str, drafting: str = "none",
        n_draft: int = 7, p_min: float = 0.0, threads: int | None = None,
    ) -> None:  # fmt: skip
        self.name = name
        self._drafting, self._n_draft, self._threads = drafting, n_draft, threads
        if draft is not None and is_view(draft):
            raise UsageError(f"{self.name}: drafts by a whole model, not by {draft}")
        self._target, self._tokenizer = load(target), load_tokenizer(target)
        # As an argument of generate(), None would mean the model's value.
        self._target.generation_config.eos_token_id = None
        self._draft = None if draft is None else load(draft)
        if self._draft is not None:
            settings = self._draft.generation_config
            settings.num_assistant_tokens = n_draft
            settings.num_assistant_tokens_schedule = "constant"
            settings.assistant_confidence_threshold = p_min

    def answer(self, request: BenchRequest) -> BenchAnswer:
        """Answer a request. Raises UsageError for penalties and biases, BaselineError for a failure."""
        torch, _ = import_libraries()
        if request.sampling.edits_logits:
            raise UsageError(f"{self.name} has no penalties over a window and no such bias: leave them out")
        clock = GenerationTimer(len(request.tokens))
        arguments: dict[str, Any] = {"streamer": clock, "do_sample": False, "pad_token_id": 0}
        if self._drafting == "model":
            arguments["assistant_model"] = self._draft
        elif self._drafting == "lookup":
            arguments["prompt_lookup_num_tokens"] = self._n_draft
        ids = torch.tensor([request.tokens])
        arguments |= {"attention_mask": torch.ones_like(ids), "max_new_tokens": request.max_tokens}
        handle = self._target.register_forward_pre_hook(clock.hook, with_kwargs=True)
        threads = torch.get_num_threads()
        torch.set_num_threads(self._threads or threads)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                clock.began = perf_counter()
                self._target.generate(ids, **arguments)
        except (RuntimeError, ValueError, IndexError) as error:
            raise BaselineError(f"{self.name} failed: {error}") from error
        finally:
            torch.set_num_threads(threads)
            handle.remove()
        return self._answered(request, clock)

    def _answered(self, request: BenchRequest, clock: GenerationTimer) -> BenchAnswer:
        tokens = [token for part in clock.parts for token in part]
        steps = list(zip(clock.drafted, clock.parts, strict=True))
        text = self._tokenizer.decode(tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return BenchAnswer(
            text=text, tokens=tuple(tokens), n_tokens=len(tokens), n_prompt=len(request.tokens),
            first=clock.times[0], seconds=clock.times[-1], decoded=len(tokens) - len(clock.parts[0]),
            decoding=clock.times[-1] - clock.times[0], steps=len(steps), drafted=sum(clock.drafted),
            accepted=len(tokens) - len(steps),
            rejected=sum(len(part) - 1 < drafted for drafted, part in steps),
        )  # fmt: skip

    def memory(self) -> int | None:
        """Return the bytes of the weights; other memory is shared with our process."""
        return sum(int(model.get_memory_footprint()) for model in (self._target, self._draft) if model)

    def close(self) -> None:
        self._target = self._draft = None


def load(path: Path) -> Any:
    return load_model(path, device="cpu", dtype="float32", attention="auto").eval()
