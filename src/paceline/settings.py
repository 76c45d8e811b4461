"""The options of `load`, in groups that check themselves: engine, drafting, quality, and all of them.

Each field states the help of its command-line option, and its range where that does not depend on the machine
or the engine (threads: hardware/threads.py). --help reads them, so nothing heavy is imported here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from paceline.drafter_table import DRAFT, DRAFTERS, TRAINED_FOR, DrafterEntry, users
from paceline.speculative import validation as typed
from paceline.speculative.errors import UsageError
from paceline.speculative.printable import printable
from paceline.speculative.validation import MAX_LOGIT, invalid, setting, unknown, validate_fields

if TYPE_CHECKING:
    from paceline.speculative.interfaces import Budget

T = TypeVar("T")
PathLike = str | Path
AUTO = "auto"
POLICIES = ("goodput", "p_min", "fixed")
MAX_TOKENS = 4096  # of any setting in tokens
# Defaults of n_draft, width and p_split. 7 tokens and the root fill 8 rows, the tile of many kernels.
POLICY_DEFAULTS = {"goodput": (31, 4, 0.3), "others": (7, 1, 0.1)}
CHAIN_ONLY_RULES = ("token", "block")
VERIFY = (AUTO, *CHAIN_ONLY_RULES, "recursive", "traversal")  # see verify.py
CROSS_VOCAB = ("off", "tli", "slem", AUTO)
ROLES = ("", "quality", "speed")
CACHE_TYPES = ("f32", "f16", "bf16", "q8_0")
DTYPES = (AUTO, "float32", "bfloat16", "float16")
KERNELS = (AUTO, "off")
PINNED, INTERLEAVE = "pinned", "interleave"
PLACEMENTS = ("system", PINNED, INTERLEAVE)
CHAINS = ("lookup", "model")  # the drafters of `auto` if all passes have one shape


@dataclass(frozen=True)
class EngineOptions:
    """How models are loaded and run. Raises UsageError for invalid options.

    kernels: "auto" uses Paceline's kernels for GGUF models if they can be compiled (docs/kernels.md).
    flash_attention: if None, llama.cpp chooses; Paceline's kernels always have it.
    exact_greedy: as always with Paceline's kernels. Otherwise all passes have n_draft + 1 rows, so that a
    plain step costs as much, and drafts are chains."""

    n_ctx: int = setting(0, "Tokens of context. Default: up to 4,096; of serve: 32,768.", 0)
    threads: int | None = setting(None, "Threads. Default: one per physical core.")
    gpu_layers: int = setting(0, "Layers of each model on a GPU; 99: all.", 0)
    flash_attention: bool | None = setting(None, "Flash attention.")
    cache_type: str = setting("f16", "Type of the KV cache: f32, f16, bf16 or q8_0.", choices=CACHE_TYPES)
    kernels: str = setting(AUTO, "Paceline's kernels: auto or off.", choices=KERNELS)
    placement: str = setting(
        "system", "Threads pinned to cores, or memory interleaved over NUMA nodes: pinned, interleave.",
        choices=PLACEMENTS,
    )  # fmt: skip
    device: str = setting(AUTO, "For a transformers model: cpu, cuda, mps or auto.")
    dtype: str = setting(AUTO, "Of its weights: auto, float32, bfloat16 or float16.", choices=DTYPES)
    attention: str = setting(AUTO, "Its attention: sdpa, eager, ..., or auto.")
    exact_greedy: bool = setting(False, "Greedy output equal to the last bit; slower.")
    sessions: int = setting(1, "Requests decoded at once. Each has -c tokens.", 1)
    prompt_cache: str = setting("", "Save prompts in this folder, for later starts (GGUF).")

    def __post_init__(self) -> None:
        validate_fields(self)


@dataclass(frozen=True)
class Drafting:
    """The settings of drafters and verification. Raises UsageError for invalid settings.

    verify: "auto" is block for a chain and traversal for a tree, or token and recursive for a large
    vocabulary (verify.py).
    lookahead_window, lookahead_ngram, lookahead_guesses: replace n_draft and width.
    p_min, p_split: see Budget. cross_vocab: see backends/translated.py (tli) and drafters/slem.py."""

    drafters: tuple[str, ...] = CHAINS  # names in the order they are called
    policy: str = setting(
        "",
        "When to stop drafting. goodput: where more would not pay (default of auto); "
        "p_min: where the drafter is unsure (default of others); fixed: after --n-draft tokens.",
        choices=POLICIES,
    )
    n_draft: int = setting(
        None,
        "Most tokens of a draft. The policies goodput and p_min stop earlier, --policy fixed drafts N each "
        "time. Default: 7 (goodput: 31).",
        1,
        MAX_TOKENS,
    )
    width: int = setting(None, "Leaves of a draft tree. Default: 1 (goodput: 4).", 1, MAX_TOKENS)
    p_min: float = setting(0.5, "End a draft below this probability (policy p_min).", 0, 1)
    p_split: float = setting(None, "Branch from this probability: 0.1 (goodput: 0.3).", 0, 1)
    draft_temp: float = setting(0.0, "Draft temperature; 0: deterministic drafts.", 0, MAX_LOGIT)
    draft_top_k: int = setting(10, "Top-k of drafts with a temperature.", 1)
    verify: str = setting(AUTO, "Of drafts: auto, token, block, recursive or traversal.", choices=VERIFY)
    min_draft_tokens: int = setting(1, "A shorter draft calls the next drafter.", 1)
    ngram_min: int = setting(3, "Minimum tokens of a match in lookup.", 1, MAX_TOKENS)
    ngram_max: int = setting(5, "Maximum tokens of a match in lookup.", 1, MAX_TOKENS)
    lookahead_window: int = setting(7, "Columns of the lookahead window.", 0, MAX_TOKENS)
    lookahead_ngram: int = setting(5, "Length of lookahead's n-grams.", 2, MAX_TOKENS)
    lookahead_guesses: int = setting(7, "Most n-grams that lookahead verifies.", 1, MAX_TOKENS)
    cross_vocab: str = setting(
        "off",
        "For another vocabulary: auto. tli drafts in shared tokens, slem in text; auto chooses.",
        choices=CROSS_VOCAB,
    )

    def __post_init__(self) -> None:
        given = {it.name: getattr(self, it.name) for it in fields(self)}
        object.__setattr__(self, "_given", given)
        drafters = typed.text_list("drafters", self.drafters)
        object.__setattr__(self, "drafters", drafters)
        policy = self.policy if self.policy != "" else "goodput" if AUTO in drafters else "p_min"
        defaults = POLICY_DEFAULTS["goodput" if policy == "goodput" else "others"]
        chosen = {"policy": policy, **dict(zip(("n_draft", "width", "p_split"), defaults, strict=True))}
        if self.verify in CHAIN_ONLY_RULES or self.cross_vocab == "slem":
            chosen["width"] = 1
        for name, value in chosen.items():
            if given[name] is None or (name == "policy" and given[name] == ""):
                object.__setattr__(self, name, value)
        validate_fields(self)
        if self.ngram_max < self.ngram_min:
            raise invalid("ngram_max", self.ngram_max, f"at least ngram_min, {self.ngram_min}")
        self._check_drafters()
        self._check_verification()

    def _check_drafters(self) -> None:
        if not self.drafters:
            raise UsageError(f"no drafter named: choose from {', '.join(DRAFTERS)}")
        for name in self.drafters:
            if name not in DRAFTERS:
                if used := TRAINED_FOR.get(name):
                    made = f"what `paceline train {name}` makes is used by {used!r} with -md"
                    raise UsageError(f"unknown drafter {name!r}: {made}")
                raise unknown("drafter", name, DRAFTERS)
        if len(set(self.drafters)) != len(self.drafters):
            raise UsageError(f"a drafter is named twice: {','.join(self.drafters)}")
        for row in self.rows:
            if row.alone and len(self.drafters) > 1:
                raise UsageError(f"{row.name!r} {row.alone}: name it without other drafters")
            if row.window and self.policy == "goodput":
                raise UsageError(f"{row.name!r} {row.alone}: use policy fixed or p_min")
        if len(models := users(self.drafters, DRAFT)) > 1:
            raise UsageError(f"{' and '.join(models)} draft with the same draft model: name one of them")

    def _check_verification(self) -> None:
        if self.verify in CHAIN_ONLY_RULES and self.width > 1:
            trees = ", ".join(rule for rule in VERIFY if rule not in CHAIN_ONLY_RULES)
            raise UsageError(f"verify {self.verify} is for chains (width 1): for a tree choose from {trees}")
        if self.cross_vocab != "slem":
            return
        if self.draft_temp > 0 or self.width > 1:
            raise UsageError(
                "slem drafts greedily, one chain of text: use cross_vocab tli for sampled drafts and trees"
            )
        for row in self.rows:
            if row.token_ids:
                raise UsageError(
                    f"slem drafts text, and {row.name!r} needs token ids: use cross_vocab tli, or 'model'"
                )

    def as_chains(self, *, with_draft: bool) -> Drafting:
        """Return the settings for passes of one shape: `auto` has no choice among passes that cost the same,
        and becomes its drafters of chains."""
        if AUTO not in self.drafters:
            return self
        return Drafting(**{**self.explicit_settings, "drafters": CHAINS[: 1 + with_draft]})

    @property
    def explicit_settings(self) -> dict[str, Any]:
        """The values that are not the fields' defaults, as they were given. Without the drafters."""
        values = cast("Mapping[str, Any]", self._given)  # type: ignore[attr-defined]
        return {it.name: values[it.name] for it in fields(self)[1:] if values[it.name] != it.default}

    @property
    def rows(self) -> tuple[DrafterEntry, ...]:
        return tuple(DRAFTERS[name] for name in self.drafters)

    @property
    def plain(self) -> bool:
        """True for plain decoding."""
        return self.drafters == ("none",)

    @property
    def budget(self) -> Budget:
        from paceline.speculative.interfaces import Budget  # late: --help needs no numpy

        # The policy `goodput` chooses from the tree, so two leaves have enough nodes.
        nodes = self.n_draft * (min(self.width, 2) if self.policy == "goodput" else self.width)
        depth, width = self.n_draft, self.width
        if any(row.window for row in self.rows):
            # Columns and guesses have lookahead_ngram - 1 nodes; the last column starts deepest.
            depth = self.lookahead_ngram - 1 + max(0, self.lookahead_window - 2)
            width = self.lookahead_window + self.lookahead_guesses
            nodes = width * (self.lookahead_ngram - 1)
        return Budget(
            depth=depth,
            nodes=nodes,
            width=width,
            p_min=0.0 if self.policy == "fixed" else self.p_min,
            p_split=self.p_split,
        )


PLAIN = Drafting(drafters=("none",))


@dataclass(frozen=True)
class Quality:
    """Options that trade output quality for speed. Raises UsageError.

    lossy: "experts=N", the experts of a mixture per token, "prefill=0.2", the share of a long prompt that is
    computed and that the draft model chooses, or both with a comma.
    role: "speed" stays within the bounds of quality that were given to the recommending commands.
    experts, prefill: the numbers in `lossy`, or 0."""

    lossy: str = setting(
        "", "Change the target's text for speed. experts=N: experts a token; prefill=0.2: part of a prompt."
    )
    role: str = setting(
        "",
        "quality refuses --lossy; speed uses what `paceline experts` and `paceline prefill` recommended.",
        choices=ROLES,
    )
    experts: int = field(default=0, init=False)
    prefill: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        validate_fields(self)
        if self.role == "quality" and self.lossy:
            raise UsageError(
                f"role quality: lossy {self.lossy} changes what the model says; leave one of them out"
            )
        kinds: dict[str, Callable[[str], float]] = {"experts": int, "prefill": float}
        parts = [part.partition("=") for part in self.lossy.split(",")] if self.lossy else []
        for name, _, value in parts:
            try:
                number = typed.read_number(kinds.pop(name), value)  # each once
            except (KeyError, ValueError):
                number = 0
            if number <= 0 or (name == "prefill" and number >= 1):
                raise UsageError(
                    f"lossy {printable(self.lossy)[:60]}: write experts=N, the number of experts per "
                    "token, or prefill=0.2, the share of a long prompt that is computed"
                )
            object.__setattr__(self, name, number)


@dataclass(frozen=True)
class LoadOptions:
    """All options of `load`, with the names of models as they were given.
    profile: a profile's name (storage/profiles.py), "auto" for that of the target and machine, or ""."""

    target: PathLike | None = None
    draft: PathLike | None = None
    drafting: Drafting = Drafting(drafters=(AUTO,))
    engine: EngineOptions = EngineOptions()
    quality: Quality = Quality()
    corpora: tuple[PathLike, ...] = ()
    remember: bool | PathLike = False
    profile: str = ""

    @classmethod
    def of(
        cls,
        target: PathLike | None = None,
        draft: PathLike | None = None,
        drafters: Sequence[str] | str | None = None,
        *,
        corpora: Sequence[PathLike] = (),
        remember: bool | PathLike = False,
        profile: str = "",
        **settings: Any,
    ) -> LoadOptions:
        """Return the options of `load`'s keywords. Raises UsageError."""
        if isinstance(drafters, str):
            drafters = [name.strip() for name in drafters.split(",")]
        engine, quality = (
            {it.name: settings.pop(it.name) for it in fields(kind) if it.init and it.name in settings}
            for kind in (EngineOptions, Quality)
        )
        require_known(settings, EngineOptions, Quality, Drafting)
        drafting = Drafting(**{"drafters": (AUTO,) if drafters is None else drafters, **settings})
        engine_options, chosen = EngineOptions(**engine), Quality(**quality)
        return cls(target, draft, drafting, engine_options, chosen, tuple(corpora), remember, profile)

    def models_as_dict(self) -> dict[str, Any]:
        """Return the keywords of `load` for everything but drafting and `remember`, as JSON."""
        files = {"target": self.target, "draft": self.draft}
        return {
            **{role: None if name is None else str(name) for role, name in files.items()},
            **asdict(self.engine),
            "lossy": self.quality.lossy,
            "role": self.quality.role,
            "corpora": list(map(str, self.corpora)),
        }


def make_settings(kind: type[T], values: Mapping[str, Any]) -> T:
    """Return `kind(**values)` for a dataclass of settings. Raises UsageError for an unknown name."""
    require_known(values, kind)
    return kind(**values)


def require_known(names: Iterable[str], *kinds: Any) -> None:
    """Raise UsageError for a name that is no field of these dataclasses, with the nearest ones."""
    known = {it.name for kind in kinds for it in fields(kind) if it.init}
    for name in names:
        if name not in known:
            raise unknown("setting", name, sorted(known))
