"""Paceline inside transformers: `model.generate(**inputs, custom_generate=paceline.hf_generate)`.

The caller's model, logits processors and stopping criteria stay in place: greedy text is that of `generate`,
and sampled text has the same distribution, with other random draws."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import compress
from pathlib import Path
from typing import Any

from paceline.drafter_factory import make_drafter, make_policy
from paceline.drafts import kind_of, open_view, require_fit
from paceline.engine import InferenceEngine
from paceline.fits import MTP, TRANSFORMERS, TargetTraits
from paceline.profiling.pass_costs import costs_of, refresh
from paceline.request_handle import RequestHandle
from paceline.settings import Drafting
from paceline.speculative.errors import UsageError
from paceline.speculative.forward_output import LogitsOutput
from paceline.speculative.interfaces import Drafter, ForwardOutput, RequiredOutputs, Session
from paceline.speculative.policy.interface import DraftPolicy
from paceline.speculative.request import GenerationRequest
from paceline.speculative.sampling import Sampling
from paceline.speculative.tree import DraftTree

MAX_SESSIONS = 64  # rows of a batch
MODEL_ATTRIBUTE = "_paceline"  # holds the settings and the drafting, which is freed with the model


def hf_generate(
    model: Any,
    input_ids: Any,
    logits_processor: Any = None,
    stopping_criteria: Any = None,
    generation_config: Any = None,
    drafters: Sequence[str] = ("auto",),
    draft_model: Any = None,
    drafting: Mapping[str, Any] | None = None,
    stream_to: Any = None,
    stop_strings: str | Sequence[str] | None = None,
    stop_tokenizer: Any = None,
    **given: Any,
) -> Any:
    """Decode one or several prompts, greedily or sampled, as `custom_generate` of `generate`.
    Return what `generate` returns, without scores. Raises UsageError for features of transformers' loop, such
    as beams and several answers to one prompt.

    drafters: names, as for `paceline run --draft`.
    draft_model: another loaded model with the same vocabulary, or a part of this model ("view:exit=22",
    "view:mtp").
    drafting: other fields of Drafting.
    stream_to: the streamer, which transformers does not pass on.
    stop_tokenizer: the tokenizer of `stop_strings`, likewise."""
    import torch

    require_supported(generation_config)
    if stop_strings is not None:
        from transformers.generation.stopping_criteria import StoppingCriteriaList, StopStringCriteria

        if stop_tokenizer is None:
            raise UsageError("stop_strings need a tokenizer: give it as stop_tokenizer, too")
        strings = [stop_strings] if isinstance(stop_strings, str) else list(stop_strings)
        given_criteria = [*(stopping_criteria or ()), StopStringCriteria(stop_tokenizer, strings)]
        stopping_criteria = StoppingCriteriaList(given_criteria)
    settings = Drafting(drafters=tuple(drafters), **(drafting or {}))
    target, drafter, policy = cached_target(model, settings, draft_model)
    if logits_processor:
        target = ProcessedTarget(target, logits_processor, input_ids.device)
    engine = InferenceEngine(target, drafter, policy, detokenize=False)
    sampling = Sampling(temperature=1.0 if generation_config.do_sample else 0.0)
    prompts = unpadded(input_ids, given.get("attention_mask"))
    limit = int(generation_config.max_length)
    if stream_to is not None:
        if len(prompts) > 1:
            raise UsageError("a streamer shows one text: give one prompt")
        stream_to.put(input_ids.cpu())
    handles, texts = list[RequestHandle](), list[list[int]]()
    with engine.run_batch() as run:
        for row, prompt in enumerate(prompts):
            padding = input_ids.shape[1] - len(prompt)
            tokens = list[int]()
            texts.append(tokens)
            seed = int(torch.randint(1 << 31, ()))  # follows torch.manual_seed
            request = GenerationRequest(
                prompt=prompt,
                max_tokens=limit - padding - len(prompt),
                sampling=sampling,
                seed=seed,
                should_stop=stopper(input_ids[row], tokens, stopping_criteria),
                ignore_eos=True,  # the criteria include it
            )
            handles.append(run.add(request))
        while not run.is_over:
            for _, output in run.step():
                if stream_to is not None and output.tokens:
                    stream_to.put(torch.tensor(output.tokens))
            for handle in handles:
                if handle.finish is not None and handle.finish.error is not None:
                    raise handle.finish.error
    if stream_to is not None:
        stream_to.end()
    return pad_output(input_ids, texts, generation_config)


def require_supported(config: Any) -> None:
    """Raise UsageError for a feature that Paceline does not have."""
    outputs = ("output_scores", "output_logits", "output_attentions", "output_hidden_states")
    for name, usual in {"num_beams": 1, "num_return_sequences": 1, **dict.fromkeys(outputs, False)}.items():
        value = getattr(config, name, None) or usual
        if value != usual:
            why = "Paceline decodes one text for each prompt and keeps its tokens only"
            raise UsageError(f"{name}={value}: {why}; leave it out, or custom_generate")


def unpadded(input_ids: Any, attention_mask: Any) -> list[list[int]]:
    """Return the prompts without padding. Raises UsageError for padding that is not on the left."""
    rows = input_ids.tolist()
    if attention_mask is None:
        return [list(row) for row in rows]
    masks = attention_mask.tolist()
    if any(1 in mask and 0 in mask[mask.index(1) :] for mask in masks):
        raise UsageError("prompts are filled up on the right, or have holes: use padding_side='left'")
    return [list(compress(row, mask)) for row, mask in zip(rows, masks, strict=True)]


def cached_target(model: Any, drafting: Drafting, draft_model: Any) -> tuple[Any, Drafter, DraftPolicy]:
    """Return the model's target, drafter and policy, which are cached; new settings make them anew.
    They hold KV caches, what drafters have learned, and costs."""
    from paceline.backends.transformers.target import HfTarget

    is_name = draft_model is None or isinstance(draft_model, str)
    settings = (drafting, draft_model if is_name else id(draft_model))
    known, *cached = model.__dict__.get(MODEL_ATTRIBUTE, (None,))
    if known == settings:
        return cached[0], cached[1], cached[2]
    target: Any = HfTarget.around(model, sessions=MAX_SESSIONS)
    small: Any = None
    if isinstance(draft_model, str):
        kind = kind_of(view := Path(draft_model))
        require_fit(draft_model, kind, TargetTraits(TRANSFORMERS, target.caps.rollback))
        small = target.open_mtp() if kind == MTP else open_view(view, target)
    elif draft_model is not None:
        small = HfTarget.around(draft_model, sessions=MAX_SESSIONS)
    costs = costs_of(target, small) if drafting.policy == "goodput" and not drafting.plain else None
    drafter, drafting = make_drafter(drafting, target, small, costs=costs)
    if costs is not None:
        refresh(costs, small)
    policy = make_policy(drafting, costs)
    model.__dict__[MODEL_ATTRIBUTE] = settings, target, drafter, policy
    return target, drafter, policy


def stopper(prompt: Any, tokens: list[int], criteria: Any) -> Callable[[int], bool]:
    """Return transformers' stopping criteria as `should_stop`. tokens: collects the generated tokens."""
    import torch

    def should_stop(token: int) -> bool:
        tokens.append(token)
        if not criteria:
            return False
        new = torch.tensor(tokens, device=prompt.device)
        return bool(criteria(torch.cat((prompt, new))[None], None).any())

    return should_stop


class ProcessedTarget:
    """A target with logits processors of transformers, which run on the prompt's device."""

    def __init__(self, target: Any, processors: Any, device: Any) -> None:
        self._target, self._processors, self._device = target, processors, device

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def forward(
        self, batch: Sequence[tuple[Any, DraftTree | int]], want: RequiredOutputs
    ) -> list[ForwardOutput]:
        outs = self._target.forward(batch, want)
        more = self._processors, self._device
        return [
            out if isinstance(tree, int) else ProcessedRows(out, session, tree, *more)
            for out, (session, tree) in zip(outs, batch, strict=True)
        ]


class ProcessedRows(LogitsOutput):
    """Logits that pass through processors when they are read."""

    def __init__(self, out: Any, session: Session, tree: DraftTree, processors: Any, device: Any) -> None:
        super().__init__(out.computed, out.features)
        self._out, self._session, self._tree = out, session, tree
        self._processors, self._device = processors, device

    def logits(self, row: int) -> Any:
        import torch

        ids = [*self._session.tokens, *self._tree.path_tokens(row - 1)]
        scores = torch.from_numpy(self._out.logits(row).copy())[None].to(self._device)
        return self._processors(torch.tensor([ids], device=self._device), scores)[0].cpu().numpy()


def pad_output(input_ids: Any, texts: Sequence[Sequence[int]], config: Any) -> Any:
    """Return prompts and texts, padded on the right."""
    import torch

    rows = [torch.tensor(text, dtype=input_ids.dtype, device=input_ids.device) for text in texts]
    pad = 0 if config.pad_token_id is None else int(config.pad_token_id)
    new = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=pad)
    sequences = torch.cat((input_ids, new), dim=1)
    if not config.return_dict_in_generate:
        return sequences
    from transformers.generation.utils import GenerateDecoderOnlyOutput

    return GenerateDecoderOnlyOutput(sequences=sequences)
