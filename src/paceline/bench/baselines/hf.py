"""transformers as a System: plain decoding, assisted generation with a draft model, and prompt lookup.

It reads the same GGUF files but makes float32 weights of them: its passes read more memory than those of an
engine that computes on the quantised weights. Compare its speedup over its own plain decoding, not its speed.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import Any

from paceline.backends.views import parse_view
from paceline.bench.system import BenchAnswer, BenchRequest
from paceline.models.names import is_view, model_path
from paceline.speculative.errors import MissingExtraError, PeerError, UsageError
from paceline.speculative.sampling import Sampling

PACKAGES = ("torch", "transformers", "accelerate", "gguf")  # the last two to read GGUF files


@dataclass
class GenerationTimer:
    """What generate() said and when: its streamer, and a hook in front of the target. The first pass reads
    the prompt too, so that what is beyond the prompt was drafted."""

    n_prompt: int
    layers: Callable[[], int]  # that a pass goes through now: an early exit is the same module
    began: float = 0.0
    times: list[float] = field(default_factory=list)  # s, of each put
    parts: list[list[int]] = field(default_factory=list)  # what each pass of the target gave
    drafted: list[int] = field(default_factory=list)  # in each pass
    _prompt: bool = True

    def __post_init__(self) -> None:
        self._all = self.layers()

    def put(self, tokens: Any) -> None:
        if self._prompt:  # comes first, and is no answer
            self._prompt = False
            return
        self.times.append(perf_counter() - self.began)
        self.parts.append(tokens.flatten().tolist())

    def end(self) -> None:
        """Streamers have it."""

    def hook(self, module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        if self.layers() < self._all:
            return
        rows = int(kwargs["input_ids"].shape[1])
        self.drafted.append(rows - (1 if self.drafted else self.n_prompt))


class Transformers:
    """One way of transformers to answer.

    drafting: "none" is plain decoding, "model" assisted generation by `draft`, at a constant n_draft and
    with p_min as its confidence threshold (0: never stops early; else transformers moves it by itself where
    scikit-learn is installed), "lookup" its prompt lookup, which knows no p_min. A draft that is the view
    exit=N of the target is its early exit. Sampled, it applies the temperature before the filters, unlike
    llama.cpp and Paceline.
    Raises MissingExtraError, UsageError, or PeerError where it cannot load a file.
    """

    def __init__(
        self,
        target: Path,
        draft: Path | None = None,
        *,
        name: str | None = None,
        drafting: str = "none",
        n_draft: int = 7,
        p_min: float = 0.0,
        threads: int | None = None,
    ) -> None:
        self.name = name or {"none": "transformers"}.get(drafting, f"transformers {drafting}")
        self._drafting, self._n_draft, self._threads = drafting, n_draft, threads
        self._target, self._tokenizer = load(target)
        self._config = self._target.get_decoder().config
        self._exits = 0 if draft is None else exit_of(draft, self._config.num_hidden_layers)
        self._draft = None if draft is None or self._exits else load(draft)[0]
        if draft is not None:
            if self._draft is not None:
                sizes = [m.config.get_text_config().vocab_size for m in (self._target, self._draft)]
                if sizes[0] != sizes[1]:
                    raise PeerError(
                        f"{self.name}: the draft has {sizes[1]:,} tokens, the target {sizes[0]:,}"
                    )
            settings = (self._draft or self._target).generation_config
            settings.num_assistant_tokens = n_draft
            settings.num_assistant_tokens_schedule = "constant"
            settings.assistant_confidence_threshold = p_min

    def answer(self, ask: BenchRequest) -> BenchAnswer:
        """Raise UsageError for sampling that transformers does not have."""
        room = self._target.config.get_text_config().max_position_embeddings
        if len(ask.tokens) + ask.max_tokens > room:
            raise PeerError(
                f"{self.name}: the prompt's {len(ask.tokens):,} tokens and {ask.max_tokens:,} more do not "
                f"fit the model's context of {room:,}"
            )
        clock = GenerationTimer(len(ask.tokens), lambda: int(self._config.num_hidden_layers))
        layers = self._config.num_hidden_layers
        handle = self._target.register_forward_pre_hook(clock.hook, with_kwargs=True)
        try:
            with quiet(), self._on_its_threads():
                self._generate(ask, clock)
        except (RuntimeError, ValueError, IndexError) as error:
            raise PeerError(f"{self.name} failed: {error}") from error
        finally:
            self._config.num_hidden_layers = layers  # an early exit that failed leaves fewer
            handle.remove()
        return self._answered(ask, clock)

    def _generate(self, ask: BenchRequest, clock: GenerationTimer) -> None:
        import torch

        torch.manual_seed(ask.seed)
        how = sampling_arguments(ask.sampling) | {"streamer": clock, "max_new_tokens": ask.max_tokens}
        # None would not turn it off: generate() then takes the model's own.
        self._target.generation_config.eos_token_id = None if ask.ignore_eos else self._tokenizer.eos_token_id
        if self._exits:
            how["assistant_early_exit"] = self._exits
        elif self._drafting == "model":
            how["assistant_model"] = self._draft
        elif self._drafting == "lookup":
            how["prompt_lookup_num_tokens"] = self._n_draft
        ids = torch.tensor([ask.tokens])
        clock.began = perf_counter()
        self._target.generate(ids, attention_mask=torch.ones_like(ids), pad_token_id=0, **how)

    def _answered(self, ask: BenchRequest, clock: GenerationTimer) -> BenchAnswer:
        tokens = [token for part in clock.parts for token in part]
        steps = list(zip(clock.drafted, clock.parts, strict=True))
        return BenchAnswer(
            text=self._tokenizer.decode(
                tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False
            ),
            tokens=tuple(tokens),
            n_tokens=len(tokens),
            n_prompt=len(ask.tokens),
            first=clock.times[0],
            seconds=clock.times[-1],
            decoded=len(tokens) - len(clock.parts[0]),
            decoding=clock.times[-1] - clock.times[0],
            steps=len(steps),
            drafted=sum(drafted for drafted, _ in steps),
            accepted=len(tokens) - len(steps),
            rejected=sum(len(part) - 1 < drafted for drafted, part in steps),
        )

    @contextmanager
    def _on_its_threads(self) -> Iterator[None]:
        import torch

        before = torch.get_num_threads()
        torch.set_num_threads(self._threads or before)
        try:
            yield
        finally:
            torch.set_num_threads(before)

    def memory(self) -> int | None:
        """Return the bytes of weights: it shares our process, so that nothing else can be told apart."""
        models = [self._target] if self._draft is None else [self._target, self._draft]
        return sum(int(model.get_memory_footprint()) for model in models)

    def close(self) -> None:
        self._target = self._draft = None


def exit_of(draft: Path, layers: int) -> int:
    """Return the layers of a view; 0 for a whole model. Raises UsageError for a view that leaves out
    others."""
    if not is_view(draft):
        return 0
    view = parse_view(draft, layers)
    if view is None or view.attention or view.feed_forward:
        raise UsageError(f"transformers: of views it has early exits alone (view:exit=N), not {draft}")
    return view.exit_layer


def load(path: Path) -> tuple[Any, Any]:
    """Return (model, tokenizer) of a GGUF file, hf:FILE or not, or of a folder."""
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise MissingExtraError(
            f"the peer 'transformers' needs {', '.join(missing)}: pip install {' '.join(PACKAGES)}"
        )
    path = model_path(path)
    if not path.exists():
        raise PeerError(f"transformers: no model file {path}")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    where: dict[str, Any] = {"local_files_only": True}
    folder = path if path.is_dir() else path.parent
    if path.is_file():
        where["gguf_file"] = path.name
    try:
        with quiet(), redirect_stderr(io.StringIO()):  # one progress bar asks nobody
            model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **where).eval()
            return model, AutoTokenizer.from_pretrained(folder, **where)
    except Exception as error:  # of many kinds: each architecture is read by code of its own
        lines = (str(error).splitlines() or [type(error).__name__])[0]
        raise PeerError(f"transformers cannot load {path.name}: {lines}") from error


def sampling_arguments(sampling: Sampling) -> dict[str, Any]:
    """Return generate()'s arguments. Raises UsageError for what it lacks: nearly the same would be another
    target."""
    if sampling.edits_logits or sampling.xtc_probability > 0.0:
        raise UsageError(
            "transformers has no penalties over a window, no XTC and no such logit bias: leave them out"
        )
    if sampling.greedy:
        return {"do_sample": False}
    return {
        "do_sample": True,
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "typical_p": sampling.typical_p,
        "min_p": sampling.min_p or None,
    }


@contextmanager
def quiet() -> Iterator[None]:
    """Keep its warnings, log lines and progress bars from our stderr."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
