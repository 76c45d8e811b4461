"""OpenVINO GenAI as a System: plain decoding, prompt lookup, a draft model, and EAGLE-3 heads.

It reads GGUF files of some types and architectures itself, and folders that `optimum-cli export openvino`
wrote. Weights and KV cache have types of its own: compare its speedup over its own plain decoding."""

from __future__ import annotations

import tempfile
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import Any

from paceline.bench.system import BenchAnswer, BenchRequest, System
from paceline.models.names import is_view, model_path
from paceline.speculative.errors import BaselineError, MissingExtraError, UsageError
from paceline.speculative.printable import truncated
from paceline.system.shutdown import scratch_folder

MAX_NGRAM = 3  # tokens that prompt lookup matches


class OpenVino(System):
    """A decoding method of openvino-genai.
    where: FOLDER[,DRAFT_FOLDER] of exported models, instead of `target` and `draft`. drafting: "none",
    "lookup", or a draft model or head, which always drafts n_draft tokens. The time of the first token is the
    library's. Raises MissingExtraError, UsageError, or BaselineError if a model cannot be loaded."""

    def __init__(
        self, where: str, target: Path, draft: Path | None = None, *, name: str, drafting: str = "none",
        n_draft: int = 7, threads: int = 1,
    ) -> None:  # fmt: skip
        self.name = name
        try:
            self._genai, self._tensor = import_module("openvino_genai"), import_module("openvino").Tensor
        except ImportError as error:
            raise MissingExtraError(f"{name} is not installed: pip install openvino-genai") from error
        folder, _, draft_folder = where.partition(",")
        target, draft = Path(folder or target), Path(draft_folder) if draft_folder else draft
        if draft is not None and is_view(draft):
            raise UsageError(f"{name}: drafts by a whole model, not by {draft}")
        self._drafts = {} if drafting == "none" else {"num_assistant_tokens": n_draft}
        self._drafts |= {"max_ngram_size": MAX_NGRAM} if drafting == "lookup" else {}
        draft = None if drafting in ("none", "lookup") else draft
        try:
            self._pipeline = self._open(model_path(target), draft and model_path(draft), threads)
        except Exception as error:  # each failure raises another type
            why = truncated(str(error).strip().rpartition("\n")[2]) or type(error).__name__
            advice = "name exported folders: --baseline openvino-genai=TARGET,DRAFT"
            raise BaselineError(f"{name} cannot load {target.name}: {why}; {advice}") from error

    def _open(self, target: Path, draft: Path | None, threads: int) -> Any:
        pipeline, scheduler = self._genai.LLMPipeline, self._genai.SchedulerConfig()
        scheduler.enable_prefix_caching = False
        # The default cache of 8 bits rounds so coarsely that drafted text is no longer plain text.
        device = {"INFERENCE_NUM_THREADS": threads, "KV_CACHE_PRECISION": "f16"}
        settings: dict[str, Any] = {"scheduler_config": scheduler, **device}
        settings |= {"prompt_lookup": True} if "max_ngram_size" in self._drafts else {}
        with scratch_folder(Path(tempfile.gettempdir())) as folder:
            if draft is not None and draft.is_file():  # a draft model has to be an exported one
                (folder / draft.name).symlink_to(draft.resolve())
                pipeline(folder / draft.name, "CPU", enable_save_ov_model=True)
                draft = folder
            if draft is not None:
                settings["draft_model"] = self._genai.draft_model(draft, "CPU", **device)
            return pipeline(target, "CPU", **settings)

    def answer(self, request: BenchRequest) -> BenchAnswer:
        """Answer a request. Raises UsageError for penalties and biases, BaselineError for a failure."""
        if request.sampling.edits_logits:
            raise UsageError(f"{self.name} has no penalties over a window and no such bias: leave them out")
        config = self._genai.GenerationConfig(
            max_new_tokens=request.max_tokens, ignore_eos=True, do_sample=False, **self._drafts
        )
        begin = perf_counter()
        try:
            result = self._pipeline.generate(self._tensor([list(request.tokens)]), config)
        except (RuntimeError, ValueError) as error:
            raise BaselineError(f"{self.name} failed: {truncated(str(error))}") from error
        seconds, figures = perf_counter() - begin, result.perf_metrics
        first, per_step = figures.get_ttft().mean / 1e3, list(figures.raw_metrics.m_batch_sizes)
        tokens, drafted = tuple(result.tokens[0]), 0 if not self._drafts else None
        if (both := result.extended_perf_metrics) is not None:  # with a draft model
            drafted = both.draft_model_metrics.get_num_generated_tokens()
        return BenchAnswer(
            text=self._pipeline.get_tokenizer().decode(list(tokens)), tokens=tokens, n_tokens=len(tokens),
            n_prompt=figures.get_num_input_tokens(), first=first, seconds=seconds, decoding=seconds - first,
            decoded=len(tokens) - per_step[0], steps=len(per_step), drafted=drafted,
            accepted=len(tokens) - len(per_step),
        )  # fmt: skip
