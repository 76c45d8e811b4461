"""What `load` will open: files in place of names, kinds in place of references.

No model is opened here. Headers may be read, and kernels are compiled to know whether there are any.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from paceline.backends.registry import BackendSpec, backend_build, backend_name, resolve_kernels
from paceline.drafter_factory import check_needs
from paceline.drafter_table import DRAFT, DRAFTERS, users
from paceline.drafts import header_traits, kind_of, open_confidence, require_fit
from paceline.fits import LLAMA_CPP, LOSSY_EXPERTS, MTP, TRANSFORMERS, USABLE, TargetTraits, source_of
from paceline.hardware.threads import choose_threads, logical_cores
from paceline.heads.confidence import Confidence
from paceline.models import zoo
from paceline.models.headers.header import is_assistant
from paceline.models.headers.plain_file import exists, require_gguf_path
from paceline.models.names import MTP_VIEW, is_view, model_path
from paceline.models.resolve import file_of
from paceline.settings import AUTO, Drafting, EngineOptions, LoadOptions, PathLike, Quality
from paceline.speculative.errors import UsageError
from paceline.storage import profiles
from paceline.storage.corpora import Corpora
from paceline.storage.costs import load_recommendation
from paceline.system.home import cpu_name, to_stderr


@dataclass(frozen=True)
class LoadPlan:
    """The models, and how they are loaded."""

    options: LoadOptions
    target: Path
    draft: Path | None  # a file or a view, if there is one; by default the target's MTP layers
    kind: str  # of the draft (fits.py), or ""
    confidence: Confidence | None  # scores the draft model's tokens, if one was trained for it
    quality: Quality  # with the recommended choices of the role "speed"
    settings: Mapping[str, Any]  # of the target, as `open_engine` takes them

    @property
    def selects_prompt_tokens(self) -> bool:
        """True if the draft model chooses the prompt tokens to compute (lossy prefill)."""
        return self.kind == DRAFT and bool(self.quality.prefill)

    @property
    def chains(self) -> Drafting:
        """The drafting if all passes have one shape."""
        return self.options.drafting.as_chains(with_draft=source_of(self.kind) == DRAFT)

    @property
    def draft_settings(self) -> dict[str, Any]:
        """The settings of a draft model, which may be another backend's."""
        engine, draft = self.options.engine, self.draft
        assert draft is not None
        if self.kind != DRAFT or backend_name(draft) == backend_name(self.target):
            return {**self.settings, "experts": 0, "prompt_cache": ""}
        alone = replace(engine, device=AUTO, dtype=AUTO, attention=AUTO)
        return engine_settings(engine if backend_name(draft) == TRANSFORMERS else alone, draft)


def resolve(options: LoadOptions) -> LoadPlan:
    """Find the files, and check what fits. Raises UsageError, ModelError or MissingExtraError."""
    options = with_profile(options)
    target, draft = model_files(options.target, options.draft, options.drafting.drafters)
    if is_assistant(model_path(target)):
        raise UsageError(
            f"{target}: holds only layers for multi-token prediction (MTP): give their model (-m), and these "
            "as its draft (-md)"
        )
    draft, confidence = open_confidence(draft)
    if options.engine.prompt_cache and backend_name(target) != LLAMA_CPP:
        raise UsageError(f"{target}: only prompts of GGUF models are saved: leave out prompt_cache")
    drafts_by_itself = draft is None and drafts_itself(target, options)
    draft = Path(MTP_VIEW) if drafts_by_itself else draft
    kind = "" if draft is None else kind_of(draft)
    check_inputs(options, kind, options.drafting)
    if draft is not None and not drafts_by_itself:  # whose header is read and fits
        known = header_traits(target) if is_view(draft) else TargetTraits(backend_name(target))
        require_fit(str(draft), kind, known)
        if kind == DRAFT and backend_name(draft) == LLAMA_CPP:
            require_gguf_path(draft)
    settings = engine_settings(options.engine, target)
    quality = options.quality
    if quality.experts:
        require_fit(f"lossy experts: {target}", LOSSY_EXPERTS, header_traits(target))
    if quality.role == "speed" and not quality.lossy:
        quality = Quality(recommended(target, draft if kind == DRAFT else None, settings))
    settings["experts"], settings["mtp"] = quality.experts, kind == MTP
    return LoadPlan(options, target, draft, kind, confidence, quality, settings)


def with_profile(options: LoadOptions, *, anywhere: bool = False) -> LoadOptions:
    """Return the options with the settings of their profile, which are printed. anywhere: also of another
    machine's. Raises UsageError."""
    if options.profile in ("", profiles.OFF) or (options.profile == AUTO and not profiles.folder().exists()):
        return options
    try:
        fingerprint = target_fingerprint(options)
    except OSError:  # opening it says what is wrong
        return options
    profile = profiles.choose(options.profile, fingerprint, machine(), to_stderr, anywhere=anywhere)
    if profile is None:
        return options
    where = "" if profile.machine == machine() else f" (of the machine {profile.machine.get('processor')})"
    to_stderr(f"profile {profile.name}{where}: {profile.command}")
    return profiles.apply(options, profile)


def target_fingerprint(options: LoadOptions) -> str:
    """Return what profiles know the target by. Raises UsageError, or OSError for an unreadable file."""
    target, _ = model_files(options.target, None, ())
    return str(BackendSpec(target, engine_settings(options.engine, target)).identity()["model"])


def machine() -> dict[str, Any]:
    """Return what a profile depends on beside the target."""
    return {"processor": cpu_name(), "cores": logical_cores()}


def model_files(
    target: PathLike | None, draft: PathLike | None, drafters: Sequence[str]
) -> tuple[Path, Path | None]:
    """Return the files of target and draft, by default the embedded ones. Raises UsageError."""
    found = None if draft is None else file_of(draft)
    if found is None and users({*drafters} - {AUTO}, MTP):
        found = Path(MTP_VIEW)
    if target is not None:
        return file_of(target), found
    return zoo.target_path(), zoo.draft_path() if found is None and users(drafters, DRAFT) else found


def drafts_itself(target: Path, options: LoadOptions) -> bool:
    """Return whether `auto` can use the target's own layers for multi-token prediction."""
    if AUTO not in options.drafting.drafters or options.target is None:
        return False
    if options.engine.exact_greedy and not resolve_kernels(target, options.engine.kernels):
        return False  # passes of one shape are for a model's chains
    return exists(model_path(target)) and header_traits(target).mtp == USABLE


def engine_settings(options: EngineOptions, target: Path) -> dict[str, Any]:
    """Return the settings of a backend, as `open_engine` takes them. Raises UsageError."""
    backend, gpu_layers = backend_name(target), options.gpu_layers
    if {options.device, options.dtype, options.attention} != {AUTO} and backend != TRANSFORMERS:
        raise UsageError(
            f"{target}: device, dtype and attention (--device, ...) are for transformers models; a "
            "GGUF file has its types, and for it there are gpu_layers (-ngl) and flash_attention (-fa)"
        )
    if gpu_layers and not backend_build(target).offload:
        reason = (
            f"is for GGUF files; {target} is loaded on a device (device, --device)"
            if backend == TRANSFORMERS
            else "the engine was built without a GPU, and all layers stay on the processor; for a GPU "
            "llama-cpp-python has to be compiled for it"
        )
        to_stderr(f"gpu_layers (-ngl) {gpu_layers}: {reason}")
        gpu_layers = 0
    settings = asdict(options) | {"threads": choose_threads(options.threads), "gpu_layers": gpu_layers}
    settings["kernels"] = resolve_kernels(target, options.kernels)
    return {name: value for name, value in settings.items() if name not in ("n_ctx", "exact_greedy")}


def recommended(target: Path, draft: Path | None, settings: Mapping[str, Any]) -> str:
    """Return the stored lossy choices for the role speed, and print what they change. draft: a model."""
    try:
        models = {"model": BackendSpec(target, settings).identity()["model"]}
    except OSError:  # opening it says what is wrong
        return ""
    stored = [load_recommendation("experts", models, to_stderr)]
    if draft is not None:
        models = {**models, "draft": BackendSpec(draft, settings).identity()["model"]}
        stored.append(load_recommendation("prefill", models, to_stderr))
    chosen = [choice for choice in stored if choice is not None and choice.lossy]
    for choice in chosen:
        to_stderr(f"role speed: {choice.lossy} changes what {target} says ({choice.effect})")
    return ",".join(choice.lossy for choice in chosen)


def check_inputs(options: LoadOptions, kind: str, drafting: Drafting) -> None:
    """Raise UsageError for a drafter without an input that it needs, or an input without a drafter.
    kind: of the draft (fits.py), or ""."""
    corpora, source = Corpora.find(options.corpora).available, source_of(kind)
    check_needs(drafting, [*corpora, source])
    names, quality = ",".join(drafting.drafters), options.quality
    selects = kind == DRAFT and bool(quality.prefill or quality.role == "speed")  # prompt tokens
    if source and not selects and not users(drafting.drafters, source):
        fitting = [name for name in users(DRAFTERS, source) if name != AUTO]
        raise UsageError(f"a {source} is given, but the drafters (--draft) {names} have no {fitting[0]!r}")
    draft_settings = {
        f"draft_temp {drafting.draft_temp:g}": drafting.draft_temp > 0,
        f"cross_vocab {drafting.cross_vocab}": drafting.cross_vocab != "off",
    }
    for what, is_set in draft_settings.items():
        if is_set and not source:
            raise UsageError(f"{what} is for a draft model: give one (draft, -md), or leave it out")
    if options.remember and not any(row.learns for row in drafting.rows):
        learners = ", ".join(row.name for row in DRAFTERS.values() if row.learns)
        raise UsageError(f"nothing learns from what is remembered: name one of {learners}")
    if corpora and not drafting.plain and not any(users(drafting.drafters, what) for what in corpora):
        of_use = " or ".join(name for what in corpora for name in users(DRAFTERS, what) if name != AUTO)
        raise UsageError(f"a corpus is given, but the drafters (--draft) {names} have no {of_use}")
