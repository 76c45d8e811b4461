"""What variants of a target gain in speed, and what they change: fewer experts, or a part of each prompt; and
the search for the part of a model that drafts best for it.

A variant is another target (`lossy`). It answers prompts of a suite in turns with the whole model. The
fastest whose perplexity, or agreement with the whole model's likeliest tokens, is within a bound is
recommended for the role "speed"."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, replace
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.api import LLM
from paceline.backends.interface import HasExperts
from paceline.backends.speculative_prefill import SHORT, AttentionSelector, ShowsAttention
from paceline.backends.views import ModelView, SearchesViews, evenly_spaced_view
from paceline.bench.prompts import RequestBuilder
from paceline.bench.suites import workload
from paceline.drafts import require_fit, traits_of
from paceline.fits import LAYER_VIEW
from paceline.loading import load_options
from paceline.profiling.pass_costs import costs_of
from paceline.settings import PLAIN, Drafting, LoadOptions, Quality
from paceline.speculative.errors import UsageError
from paceline.speculative.interfaces import RequiredOutputs, SelectsPromptTokens, Target
from paceline.speculative.policy.costs import PassCosts
from paceline.speculative.request import extend_with_prompt
from paceline.speculative.sampling import Sampling
from paceline.speculative.speedup_formulas import speedup
from paceline.speculative.tree import chain
from paceline.storage.costs import CachedView, Recommendation, store_recommendation, store_view
from paceline.system.home import to_stderr

MAX_PROMPT_CHARACTERS = 1200
SCORED_ROWS = 64  # rows of a pass over a text
MAX_COUNTS = 6  # numbers of experts tried without a choice
LOADING, ANSWERS, SCORING, VIEWS = "loading", "answers", "scoring", "views"  # phases
MOST_AHEAD = 8  # draft tokens in the expected speed
SHARE = 0.5  # maximum share of skipped blocks, if several numbers are tried
GUIDES, SEEN = 2, 96  # number of guide texts, and of their last tokens

# Takes the number of steps of each phase, and returns a function to call after each step.
Begin = Callable[[Mapping[str, int]], Callable[[str], None]]
Text = tuple[list[int], list[int]]  # a prompt, and the whole model's answer
Closest = Callable[[Sequence[int], int, int], Sequence[frozenset[int]]]


@dataclass(frozen=True)
class Scores:
    """Of the tokens of a text: their nats, and the likeliest tokens in their places."""

    nats: NDArray[np.float64]
    likeliest: NDArray[np.int64]

    def changes(self, whole: Scores) -> dict[str, float]:
        """Return the rise of perplexity over the whole model's, and how often its likeliest token is ours."""
        rise = float(np.exp(self.nats.mean() - whole.nats.mean()) - 1)
        return {"rise": rise, "agreement": float((self.likeliest == whole.likeliest).mean())}


def short_items(suite: str, n_items: int, longest: int = MAX_PROMPT_CHARACTERS) -> list[workload.Item]:
    """Return short items of all categories. Raises UsageError if a suite has none."""
    items = workload.load(suite)
    short = [item for item in items if not item.session and workload.length(item) <= longest]
    if not short:
        raise UsageError(f"suite {suite}: holds no item of at most {longest:,} characters")
    return workload.sample_items(short, n_items)


def tokenise_prompts(llm: LLM, items: Sequence[workload.Item], n: int) -> Iterator[list[int]]:
    """Yield the tokens of each item's prompt, which must leave room for n more."""
    prompts = RequestBuilder(llm, n=n, sampling=Sampling(), seed=0)
    for item in items:
        yield list(prompts.request(item, {}).tokens)


def generate_answers(llm: LLM, items: Sequence[workload.Item], n: int) -> Iterator[Text]:
    """Yield the prompt of each item, and the model's n tokens after it."""
    for prompt in tokenise_prompts(llm, items, n):
        yield prompt, list(llm.generate(prompt, max_tokens=n, ignore_eos=True).tokens)


def score_text(target: Target, tokens: Sequence[int], n_prompt: int = 1) -> Scores:
    """Score the tokens of a text after its prompt."""
    nats, likeliest = list[float](), list[int]()
    target.forget()
    with closing(target.open()) as session:
        extend_with_prompt(target, session, tokens[:n_prompt])
        for start in range(n_prompt, len(tokens), SCORED_ROWS):
            right = list(tokens[start : start + SCORED_ROWS])
            out = target.forward([(session, chain(right[:-1], "text"))], RequiredOutputs())[0]
            for row, token in enumerate(right):
                logits = np.asarray(out.logits(row), np.float64)
                most = logits.max()
                nats.append(float(most + np.log(np.exp(logits - most).sum()) - logits[token]))
                likeliest.append(int(logits.argmax()))
            session.commit(range(len(right) - 1), right[-1])
    return Scores(np.array(nats), np.array(likeliest))


def measure_experts(
    models: LoadOptions,
    begin: Begin,
    *,
    counts: Sequence[int] = (),
    text: str = "",
    text_tokens: int = 512,
    suite: str = "real",
    items: int = 4,
    n: int = 64,
    bound: float = 0.02,
) -> dict[str, Any]:
    """Measure a mixture of experts with each number of experts, plain and with drafters; all are loaded at
    once, as they share their weights. Return a record for `paceline experts --json`.
    counts: numbers of experts; all below the model's own, if empty. text: to score, its first `text_tokens`.
    items, n: answers, and tokens of each. bound: maximum rise of perplexity. Raises UsageError."""
    suite_items = short_items(suite, items)
    drafters = ("none", "lookup", *(["model"] if models.draft is not None else []))
    with ExitStack() as opened:

        def load_with(drafter: str, lossy: str) -> LLM:
            """Load the model with one drafter, and the draft model only if the drafter needs it."""
            drafts = drafter == "model"
            drafting = Drafting(drafters=(drafter,), cross_vocab="auto" if drafts else "off")
            draft = models.draft if drafts else None
            needed = replace(models, draft=draft, drafting=drafting, quality=Quality(lossy))
            return opened.enter_context(load_options(needed))

        whole = load_with("none", "")
        if not isinstance(whole.target, HasExperts):
            raise UsageError(f"{whole.target.path}: has no experts to leave out")
        used, experts = whole.target.expert_counts()
        counts = list(dict.fromkeys([used, *(counts or usual_counts(used))]))
        lossy = {count: f"experts={count}" if count != used else "" for count in counts}
        n_models = len(counts) * len(drafters)
        tick = begin({LOADING: n_models, SCORING: len(counts), ANSWERS: n_models * len(suite_items)})
        loaded = dict[tuple[int, str], LLM]()
        for count in counts:
            for name in drafters:
                is_whole = (count, name) == (used, "none")
                loaded[count, name] = whole if is_whole else load_with(name, lossy[count])
                tick(LOADING)
        tokens = scored_text(whole, text, text_tokens, suite_items, n)
        scores = dict[int, Scores]()
        for count in counts:
            scores[count] = score_text(loaded[count, "none"].target, tokens)
            tick(SCORING)
        seconds: dict[tuple[int, str], list[float]] = {at: [] for at in loaded}  # per token
        for prompt in tokenise_prompts(whole, suite_items, n):
            for at, llm in loaded.items():
                llm.generate(prompt, max_tokens=1, ignore_eos=True)  # into the cache
                answer = llm.generate(prompt, max_tokens=n, ignore_eos=True)
                seconds[at].append(1 / answer.tokens_per_second)
                tick(ANSWERS)
        plain = np.array(seconds[used, "none"])
        rows = [
            {
                "experts": count,
                "perplexity": float(np.exp(scores[count].nats.mean())),
                **scores[count].changes(scores[used]),
                "speed": {name: float(np.mean(plain / np.array(seconds[count, name]))) for name in drafters},
            }
            for count in counts
        ]
        best = fastest_experts(rows, bound)
        row = next(row for row in rows if row["experts"] == best["experts"])
        effect = (
            f"perplexity {row['rise']:+.1%}, at most {bound:+.0%} allowed; {row['agreement']:.0%} of "
            f"{len(tokens):,} likeliest tokens are the same"
        )
        found = Recommendation(lossy[best["experts"]], effect)
        store_recommendation("experts", {"model": whole.target.identity()["model"]}, found, to_stderr)
        return {
            "model": str(whole.target.path),
            "experts": experts,
            "used": used,
            "bound": bound,
            "text_tokens": len(tokens),
            "answers": len(suite_items),
            "rows": rows,
            "recommended": best,
        }


def usual_counts(used: int) -> tuple[int, ...]:
    """Return numbers below `used`: all, or at most MAX_COUNTS spread evenly."""
    counts = np.linspace(1, used - 1, min(MAX_COUNTS, used - 1)).round().astype(int) if used > 1 else ()
    return tuple(sorted({int(n) for n in counts}, reverse=True))


def scored_text(llm: LLM, text: str, limit: int, items: Sequence[workload.Item], n: int) -> list[int]:
    """Return the tokens of the text; without one, prompts of the suite and the whole model's answers."""
    if text:
        tokens = llm.target.text.encode(text)
    else:
        answers = generate_answers(llm, items, n)
        tokens = [token for prompt, answer in answers for token in prompt + answer]
    tokens = tokens[: min(limit, llm.target.caps.n_ctx)]
    if len(tokens) < 2:
        raise UsageError("the text has fewer than two tokens")
    return tokens


def fastest_experts(rows: Sequence[Mapping[str, Any]], bound: float) -> dict[str, Any]:
    """Return the fastest number of experts and drafter whose rise of perplexity is within the bound."""
    good = (row for row in rows if row["rise"] <= bound)
    found = ((speed, row["experts"], name) for row in good for name, speed in row["speed"].items())
    speed, count, name = max(found)
    return {"experts": count, "drafter": name, "speed": speed}


@dataclass(frozen=True)
class PrefilledAnswer:
    """An answer to one prompt: seconds to its first token, the prompt tokens that were computed, and the
    scores of the whole prompt's answer."""

    seconds: float
    computed: int
    answer: tuple[int, ...]
    scores: Scores


def measure_prefill(
    models: LoadOptions,
    begin: Begin,
    *,
    shares: Sequence[float] = (0.5, 0.3, 0.2, 0.1),
    suite: str = "real-grounded",
    items: int = 8,
    n: int = 64,
    bound: float = 0.9,
) -> dict[str, Any]:
    """Measure answers with parts of their prompts, which the draft model chooses: how soon the first token
    comes, and what is left of the whole prompt's answer, each of whose tokens is predicted again. Return a
    record for `paceline prefill --json`.
    shares: of each prompt. items, n: answers, and tokens of each. bound: minimum share of the answers' tokens
    that must stay the likeliest. Raises UsageError, as for a suite without long prompts."""
    shares = sorted(shares, reverse=True)
    choices = {1.0: Quality(), **{share: Quality(f"prefill={share:g}") for share in shares}}
    with load_options(replace(models, drafting=PLAIN, quality=Quality("prefill=0.5"))) as llm:
        target, draft = llm.target, llm.draft
        assert isinstance(target, SelectsPromptTokens)
        assert isinstance(draft, ShowsAttention)  # else `load` refused it
        prompts = long_prompts(llm, suite, items, n)
        tick = begin(dict.fromkeys((ANSWERS, SCORING), len(prompts) * (1 + len(shares))))
        found: dict[float, list[PrefilledAnswer]] = {share: [] for share in choices}
        draft.prompt_attention(prompts[0][: SHORT + 1], 1)  # its first call makes a context
        for prompt in prompts:
            answer: tuple[int, ...] = ()
            for share, answers in found.items():
                target.prompt_selector = None if share == 1.0 else AttentionSelector(draft, share)
                answers.append(measured := answer_prefilled(llm, prompt, answer, n, tick))
                answer = answer or measured.answer
        rows = [{"share": share} | compare_prefilled(found[share], found[1.0]) for share in found]
        best = soonest_share(rows, bound)
        effect = (
            f"{best['agreement']:.0%} of {best['tokens']:,} tokens of answers stayed the likeliest, at least "
            f"{bound:.0%} wanted"
        )
        models_key = {"model": target.identity()["model"], "draft": llm.draft.identity()["model"]}
        choice = Recommendation(choices[best["share"]].lossy, effect)
        store_recommendation("prefill", models_key, choice, to_stderr)
        return {
            "model": str(llm.target.path),
            "draft": str(llm.draft.path),
            "suite": suite,
            "bound": bound,
            "prompts": len(prompts),
            "prompt_tokens": float(np.mean([len(prompt) for prompt in prompts])),
            "rows": rows,
            "recommended": best["share"],
        }


def long_prompts(llm: LLM, suite: str, items: int, n: int) -> list[list[int]]:
    """Return the prompts of which a part can be computed. Raises UsageError if there are none."""
    prompts = list[list[int]]()
    for item in workload.sample_items(workload.load(suite), items):
        try:
            prompts += tokenise_prompts(llm, [item], n)
        except UsageError as error:
            to_stderr(str(error))
    prompts = [prompt for prompt in prompts if len(prompt) > SHORT]
    if not prompts:
        raise UsageError(f"suite {suite}: holds no prompt of more than {SHORT} tokens that fits")
    return prompts


def answer_prefilled(
    llm: LLM, prompt: Sequence[int], answer: Sequence[int], n: int, tick: Callable[[str], None]
) -> PrefilledAnswer:
    """Answer a prompt from empty caches, and score `answer` (the own one, if empty) after it."""
    assert llm.draft is not None
    for model in (llm.target, llm.draft):
        model.forget()
    began = perf_counter()
    with llm.stream(prompt, max_tokens=n, ignore_eos=True) as stream:
        next(stream)
        seconds = perf_counter() - began
        for _ in stream:
            pass
    own = stream.result()
    tick(ANSWERS)
    scores = score_text(llm.target, [*prompt, *(answer or own.tokens)], len(prompt))
    tick(SCORING)
    return PrefilledAnswer(seconds, len(prompt) - own.n_skipped, own.tokens, scores)


def compare_prefilled(found: Sequence[PrefilledAnswer], whole: Sequence[PrefilledAnswer]) -> dict[str, Any]:
    """Return the figures of one share. first_token: time to it, as a share of the whole prompt's."""
    pairs = list(zip(found, whole, strict=True))
    ours, theirs = (
        Scores(
            *(np.concatenate([getattr(one.scores, name) for one in some]) for name in ("nats", "likeliest"))
        )
        for some in (found, whole)
    )
    return {
        "computed": float(np.mean([one.computed for one in found])),
        "first_token": float(np.mean([one.seconds / full.seconds for one, full in pairs])),
        **ours.changes(theirs),
        "same_answers": sum(one.answer == full.answer for one, full in pairs),
        "tokens": len(ours.nats),
    }


def soonest_share(rows: Sequence[dict[str, Any]], bound: float) -> dict[str, Any]:
    """Return the row with the soonest first token whose agreement is within the bound; the first is whole."""
    return min((row for row in rows if row["agreement"] >= bound), key=lambda row: row["first_token"])


@dataclass(frozen=True)
class ViewScore:
    """agreement: share of tokens predicted. share: of the model's weights. speed: expected speedup over plain
    decoding with n_draft tokens a draft."""

    view: ModelView
    method: str
    agreement: float
    share: float
    speed: float
    n_draft: int


class ViewEvaluator:
    """Evaluates views on `texts`, whose prompts the whole model prefills once, each in a session."""

    def __init__(self, whole: Any, texts: Sequence[Text], cost: PassCosts | None = None) -> None:
        self._whole, self._texts = whole, texts
        self.layers: int = whole.layers
        self.tokens = sum(len(answer) for _, answer in texts)
        depth = max((len(prompt) for prompt, _ in texts), default=1)
        self._curve = [1.0] * (MOST_AHEAD + 2) if cost is None else cost.curve(MOST_AHEAD + 1, depth)
        self._sessions = []
        for prompt, _ in texts:
            session = whole.open()
            session.extend(prompt)
            while session.pending_tokens:
                n = min(session.pending_tokens, whole.caps.max_prefill_tokens)
                whole.forward([(session, n)], RequiredOutputs())
            self._sessions.append(session)

    def agreement(self, view: Any) -> float:
        """Return the share of tokens that a view of the whole engine predicts."""
        batch = []
        for session, (prompt, answer) in zip(self._sessions, self._texts, strict=True):
            beside = view.open(session)
            beside.extend(prompt)
            batch.append((beside, chain(answer[:-1], "answer")))
        outs = view.forward(batch, RequiredOutputs())
        right = sum(
            out.argmax(row) == token
            for out, (_, answer) in zip(outs, self._texts, strict=True)
            for row, token in enumerate(answer)
        )
        for beside, _ in batch:
            beside.close()
        return float(right / self.tokens)

    def evaluate(self, view: ModelView, method: str) -> ViewScore:
        engine = self._whole.view(view)
        agreement, share = self.agreement(engine), engine.weight_bytes / self._whole.weight_bytes
        speeds = [
            speedup(agreement, n, share, self._curve[n + 1] / self._curve[1])
            for n in range(1, MOST_AHEAD + 1)
        ]
        n = int(np.argmax(speeds))
        return ViewScore(view, method, agreement, share, speeds[n], n + 1)

    def close(self) -> None:
        for session in self._sessions:
            session.close()


def search(
    judge: ViewEvaluator,
    *,
    tries: int,
    blocks: int = 0,
    guides: Sequence[Text] = (),
    closest: Closest | None = None,
) -> Iterator[ViewScore]:
    """Yield the scores of at most `tries` different views, which skip blocks evenly, or the layers that
    change hidden states least (arXiv:2403.03853). Raises UsageError for too many blocks.
    blocks: to skip; 0 tries several numbers. guides: texts for `closest` (HfTarget.search_skipped_layers)."""
    most = max(1, round(SHARE * 2 * (judge.layers - 2)))
    numbers = [blocks] if blocks else [n for n in (1, 2, 4, 8, 16, 32, 64) if n <= most]
    proposals = [("evenly", evenly_spaced_view(judge.layers, n)) for n in numbers]
    if closest is not None:
        proposals += [("similar", view) for view in hidden_state_views(numbers, guides, closest)]
    seen: set[ModelView] = set()
    for method, view in proposals:
        if len(seen) < tries and view not in seen:
            seen.add(view)
            yield judge.evaluate(view, method)


def hidden_state_views(
    numbers: Sequence[int], guides: Sequence[Text], closest: Closest
) -> Iterator[ModelView]:
    """Yield views without the whole layers that hidden states suggest to skip."""
    wanted = sorted({(n + 1) // 2 for n in numbers if n > 1})
    if not wanted:
        return
    for prompt, answer in guides:
        skipped = closest([*prompt, *answer], len(answer), wanted[-1])
        for n in wanted:
            if n <= len(skipped):
                layers = sorted(skipped[n - 1])
                odd = len(numbers) == 1 and numbers[0] % 2  # one block less than whole layers
                yield ModelView(0, frozenset(layers), frozenset(layers[: len(layers) - odd]))


def search_views(
    models: LoadOptions, begin: Begin, *, blocks: int, tries: int, items: int, n: int, suite: str
) -> dict[str, Any]:
    """Search for a view, store it, and return a record for `paceline views search --json`: all views `tried`
    in order, and the `best` one with its `speed` on other texts. A KeyboardInterrupt in phase VIEWS ends the
    search with the views tried so far, if any. Raises UsageError or ModelError."""
    suite_items = short_items(suite, 2 * items)
    engine = replace(models.engine, sessions=max(1, len(suite_items)))
    with load_options(replace(models, drafting=PLAIN, engine=engine)) as llm:
        whole: Any = llm.target
        if not isinstance(whole, SearchesViews):
            raise UsageError(
                f"{whole.path}: its engine cannot leave blocks out: views are for transformers models "
                "(hf:FILE reads a GGUF file with transformers)"
            )
        require_fit(str(llm.target.path), LAYER_VIEW, traits_of(llm.target))
        cost = costs_of(llm.target).target
        tick, texts = begin({ANSWERS: len(suite_items), VIEWS: tries}), list[Text]()
        for text in generate_answers(llm, suite_items, n):
            texts.append(text)
            tick(ANSWERS)
        searched, held_out = texts[::2], texts[1::2]
        tried, guides = list[ViewScore](), [(prompt[-SEEN:], answer) for prompt, answer in searched[:GUIDES]]
        judge, closest = ViewEvaluator(whole, searched, cost), whole.search_skipped_layers
        try:
            for score in search(judge, tries=tries, blocks=blocks, guides=guides, closest=closest):
                tried.append(score)
                tick(VIEWS)
        except KeyboardInterrupt:
            if not tried:
                raise
        judge.close()
        other = ViewEvaluator(whole, held_out or searched, cost)
        best_found = max(tried, key=lambda score: score.speed)
        best = other.evaluate(best_found.view, best_found.method)
        other.close()
        cached = CachedView(best.view.spec, best.agreement, best.share, other.tokens, best.method, len(tried))
        store_view(llm.target.identity()["model"], cached, to_stderr)
        layers = whole.layers
        return {
            "model": str(llm.target.path),
            "layers": layers,
            "blocks": 2 * layers,
            "tokens": judge.tokens,
            "tried": [
                vars(score) | {"view": score.view.spec, "left_out": score.view.n_skipped_blocks(layers)}
                for score in tried
            ],
            "best": asdict(cached),
            "speed": best.speed,
            "n_draft": best.n_draft,
        }
