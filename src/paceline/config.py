"""The settings of drafting."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from paceline.drafter_table import DRAFT, DRAFTERS, TRAINED_FOR, DrafterEntry, users, uses_draft
from paceline.speculative import validation as typed
from paceline.speculative.errors import UsageError
from paceline.speculative.interfaces import Budget
from paceline.speculative.printable import printable
from paceline.speculative.validation import MAX_LOGIT, invalid, unknown, validate_fields
from paceline.speculative.verify import CHAIN_ONLY_RULES, VERIFICATION_RULES

T = TypeVar("T")
POLICIES = ("fixed", "p_min", "rate")
UNSET = -(1 << 31)  # the policy's default
MAX_TOKENS = 4096  # of any setting in tokens
# Defaults of n_draft, width and p_split. 7 tokens and the root fill 8 rows, the tile of many kernels.
POLICY_CHOSEN_FIELDS = {"rate": (31, 4, 0.3), "p_min": (7, 1, 0.1), "fixed": (7, 1, 0.1)}
VERIFY = ("auto", *VERIFICATION_RULES)
CROSS_VOCAB = ("off", "tli", "slem", "auto")
ROLES = ("", "quality", "speed")


@dataclass(frozen=True)
class Drafting:
    """The settings of drafters and verification. Raises UsageError for invalid settings.

    drafters: names in the order they are called.
    policy: the rule for the length of drafts (speculative/policy/interface.py); by default "rate" for the
    drafter auto, and "p_min" otherwise.
    n_draft: the longest draft.
    width: most leaves of a draft tree; 1 is a chain.
    p_min, p_split: see Budget.
    draft_temp: temperature of the draft model; 0 is greedy, larger values sample from its draft_top_k.
    verify: the rule for sampled drafts; "auto" is block for a chain and traversal for a tree, or token and
    recursive for a large vocabulary (verify.py).
    min_draft_tokens: a draft of so many tokens ends the calls of further drafters.
    ngram_min, ngram_max: lengths that lookup matches, the longest first.
    lookahead_window, lookahead_ngram, lookahead_guesses: columns, length of n-grams, number of guesses; they
    replace n_draft and width.
    cross_vocab: the use of a draft model of another vocabulary: "tli" drafts common tokens
    (backends/translated.py), "slem" drafts text (drafters/slem.py), "auto" chooses, "off" refuses it."""

    drafters: tuple[str, ...] = ("lookup", "model")
    policy: str = ""
    n_draft: int = UNSET
    width: int = UNSET
    p_min: float = 0.5
    p_split: float = float(UNSET)
    draft_temp: float = 0.0
    draft_top_k: int = 10
    verify: str = "auto"
    min_draft_tokens: int = 1
    ngram_min: int = 3
    ngram_max: int = 5
    lookahead_window: int = 7
    lookahead_ngram: int = 5
    lookahead_guesses: int = 7
    cross_vocab: str = "off"

    def __post_init__(self) -> None:
        validate_fields(self)
        if not self.policy:
            object.__setattr__(self, "policy", "rate" if "auto" in self.drafters else "p_min")
        self._check_names()
        n_draft, width, p_split = POLICY_CHOSEN_FIELDS[self.policy]
        if self.verify in CHAIN_ONLY_RULES or self.cross_vocab == "slem":
            width = 1
        for name, value in (("n_draft", n_draft), ("width", width), ("p_split", p_split)):
            if getattr(self, name) == UNSET:
                object.__setattr__(self, name, value)
        lows = {"lookahead_window": 0, "lookahead_ngram": 2, "ngram_max": self.ngram_min}
        unbounded = ("draft_top_k", "min_draft_tokens")
        for name in ("n_draft", "width", *unbounded, "lookahead_guesses", "ngram_min", *lows):
            low = lows.get(name, 1)
            value = getattr(self, name)
            if value < low:
                raise invalid(name, value, f"at least {low}")
            if value > MAX_TOKENS and name not in unbounded:
                raise invalid(name, value, f"at most {MAX_TOKENS:,}")
        for name, most in (("p_min", 1.0), ("p_split", 1.0), ("draft_temp", MAX_LOGIT)):
            value = getattr(self, name)
            if not 0.0 <= value <= most:
                raise UsageError(f"{name} {value}: must be between 0 and {most:g}")
        if self.verify in CHAIN_ONLY_RULES and self.width > 1:
            trees = ", ".join(rule for rule in VERIFY if rule not in CHAIN_ONLY_RULES)
            raise UsageError(f"verify {self.verify} is for chains (width 1): for a tree choose from {trees}")
        self._check_cross_vocab()

    def _check_names(self) -> None:
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
            if row.window and self.policy == "rate":
                raise UsageError(f"{row.name!r} {row.alone}: use policy fixed or p_min")
        if len(models := users(self.drafters, DRAFT)) > 1:
            raise UsageError(f"{' and '.join(models)} draft with the same draft model: name one of them")
        for what, choices in (("policy", POLICIES), ("verify rule", VERIFY), ("cross_vocab", CROSS_VOCAB)):
            value = getattr(self, what.removesuffix(" rule"))
            if value not in choices:
                raise unknown(what, value, choices)

    def _check_cross_vocab(self) -> None:
        if self.cross_vocab != "off" and not uses_draft(self.drafters):
            raise UsageError(
                f"cross_vocab {self.cross_vocab} translates for a draft model: give one (draft, -md), "
                "with 'model' among the drafters"
            )
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

    @property
    def rows(self) -> tuple[DrafterEntry, ...]:
        return tuple(DRAFTERS[name] for name in self.drafters)

    @property
    def plain(self) -> bool:
        """True for plain decoding."""
        return self.drafters == ("none",)

    @property
    def budget(self) -> Budget:
        # The policy `rate` chooses from the tree, so two leaves have enough nodes.
        nodes = self.n_draft * (min(self.width, 2) if self.policy == "rate" else self.width)
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


def validate_drafting(kind: type[T], values: Mapping[str, Any]) -> T:
    """Return `kind(**values)` for a dataclass of settings. Raises UsageError for an unknown name."""
    known = {f.name for f in fields(kind)}  # type: ignore[arg-type]  # kind is a dataclass
    for name in values:
        if name not in known:
            raise unknown("setting", name, sorted(known))
    return kind(**values)


@dataclass(frozen=True)
class LossyChoices:
    """What makes the target say other things, for speed.
    experts: of a mixture, that a token uses; 0 for the model's number.
    prefill: share of a long prompt that is computed; 0 for all."""

    experts: int = 0
    prefill: float = 0.0


def parse_lossy(text: str) -> LossyChoices:
    """Read "experts=4", "prefill=0.2" or both with a comma between them. Raises UsageError."""
    kinds: dict[str, Callable[[str], float]] = {"experts": int, "prefill": float}
    choices: dict[str, Any] = {}
    for part in typed.text("lossy", text).split(",") if text else ():
        name, _, value = part.partition("=")
        try:
            number = typed.read_number(kinds[name], value)
        except (KeyError, ValueError):
            number = 0
        if name in choices or number <= 0 or (name == "prefill" and number >= 1):
            raise UsageError(
                f"lossy {printable(text)[:60]}: write experts=N, the number of experts that a token uses, or "
                "prefill=0.2, the share of a long prompt that is computed"
            )
        choices[name] = number
    return LossyChoices(**choices)
