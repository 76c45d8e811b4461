"""Classic mistakes planted in the loop as it stands, for the certificate to catch: the wrong verifications
and drafts of broken.py, and faults of a line or two in the real ones."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager as Planted
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import numpy as np

import broken
from paceline.backends.llama_cpp import LlamaTarget
from paceline.backends.llama_cpp.cache import LlamaKvCache, SequenceSlot
from paceline.backends.llama_cpp.session import LlamaSession
from paceline.backends.toy import ToyTarget
from paceline.bench.certify.certificate import ALL_SAMPLERS, sampled_budget
from paceline.bench.certify.fixed_rows import (
    Context,
    ContextRow,
    FixedRowsTarget,
    SamplingSetup,
    record_rows,
    recorded_places,
)
from paceline.drafters import model
from paceline.settings import Drafting
from paceline.speculative import loop as decode
from paceline.speculative import verify
from paceline.speculative.interfaces import Budget, Drafter, RequiredOutputs
from paceline.speculative.rng import SeededRng
from paceline.speculative.sampling import Probabilities, Sampling, softmax
from paceline.speculative.tree import EMPTY, ROOT, DraftTree
from parrot import WrappedDrafter

CHAIN = Drafting(("model",), draft_temp=1.0)
TREE = replace(CHAIN, width=3)
GREEDY = replace(CHAIN, draft_temp=0.0)
Change = Callable[[DraftTree], DraftTree]


def unchanged(tree: DraftTree) -> DraftTree:
    return tree


@dataclass(frozen=True)
class Mistake:
    """plant: makes it for as long as the context lasts. change: what becomes of each draft."""

    drafting: Drafting
    plant: Callable[[], Planted[None]] = nullcontext
    change: Change = unchanged


class Changed(WrappedDrafter):
    """A drafter whose drafts are changed on their way."""

    def __init__(self, drafter: Drafter, change: Change) -> None:
        super().__init__(drafter)
        self._change = change

    def propose(self, batch: Sequence[tuple[Any, Budget]]) -> list[DraftTree]:
        return [self._change(tree) if len(tree) else tree for tree in super().propose(batch)]


@contextmanager
def replaced(owner: Any, name: str, by: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, by)
    try:
        yield
    finally:
        setattr(owner, name, before)


def edited(module: ModuleType, function: Any, *lines: tuple[str, str]) -> Any:
    """A function of a module with some of its source replaced."""
    source, name = textwrap.dedent(inspect.getsource(function)), function.__name__
    for line, by in lines:
        assert source.count(line) == 1, f"{name} has no such line any more: {line}"
        source = source.replace(line, by)
    found: dict[str, Any] = {}
    code = "from __future__ import annotations\n" + source
    exec(compile(code, f"<{name}, edited>", "exec"), vars(module), found)
    return found[name]


def judged(walk: Callable[..., Any]) -> Callable[[], Planted[None]]:
    return lambda: replaced(decode, "verify", walk)


def drawn(*lines: tuple[str, str]) -> Callable[[], Planted[None]]:
    """The draft model's draw with other lines."""
    owner = model.ModelDrafter
    return lambda: replaced(owner, "_add_sampled", edited(model, owner._add_sampled, *lines))


def sure_rejection_without_residual() -> Planted[None]:
    line = "_reject_first(top, top.p, q, x)"
    wrong = edited(verify, verify.verify_traversal, (line, "top.waiting.pop(0)"))
    return replaced(
        verify, "VERIFICATION_RULES", verify.VERIFICATION_RULES | {"traversal": wrong, "block": wrong}
    )


def highest_of_equals() -> Planted[None]:
    """Plant the tie-breaking mistake in greedy decoding only."""
    right, wrong = verify.verify, broken.judged_by(broken.highest_of_equals)

    def judge(tree: DraftTree, out: Any, sampling: Sampling, *rest: Any) -> verify.Verdict:
        return (wrong if sampling.greedy else right)(tree, out, sampling, *rest)

    return replaced(decode, "verify", judge)


def one_stream() -> Planted[None]:
    """Give the draft model the target's random stream."""
    begin = model.ModelDrafterState.__init__

    def init(self: model.ModelDrafterState, *args: Any) -> None:
        begin(self, *args)
        self.rng = SeededRng(args[-1])

    return replaced(model.ModelDrafterState, "__init__", init)


@contextmanager
def bonus_of_the_draft() -> Iterator[None]:
    """After a draft is accepted as a whole, the draft model's row gives the next token."""
    drafts: list[FixedRowsTarget] = []
    propose = model.ModelDrafter.propose

    def noted(drafter: Any, batch: Any) -> list[DraftTree]:
        drafts[:] = [drafter._draft]
        return propose(drafter, batch)

    def judge(tree: DraftTree, out: Any, sampling: Sampling, history: Any, rng: Any, *rest: Any) -> Any:
        verdict = verify.verify(tree, out, sampling, history, rng, *rest)
        if not verdict.path or tree.children(verdict.path[-1]):
            return verdict
        row = drafts[0].row_after([*out._after, *tree.path_tokens(verdict.path[-1])])
        return verify.Verdict(verdict.path, rng.draw(softmax(row.astype(np.float64))))

    with replaced(model.ModelDrafter, "propose", noted), replaced(decode, "verify", judge):
        yield


def swapped_rows() -> Planted[None]:
    """Two sessions get each other's rows."""
    forward = LlamaTarget.forward

    def swapped(target: LlamaTarget, batch: Any, want: RequiredOutputs) -> Any:
        equal = [tree for _, tree in batch] == [EMPTY, EMPTY]  # others have rows of other numbers
        return [*forward(target, batch, want)][:: -1 if equal else 1]

    return replaced(LlamaTarget, "forward", swapped)


def unverified_draft_as_text() -> Planted[None]:
    """A closed session claims its last branch, while the main sequence has the cells of the first."""
    close = LlamaSession.close

    def claims(session: LlamaSession) -> None:
        tree, slot, root = session.tree, session._slot, session.tokens[-1:]
        if slot is not None and tree and session._sequence[-1] != slot.sequence:
            session._cache.free_branches(slot)
            slot.cached += [*root, *tree.path_tokens(len(tree) - 1)]
            session._clear_tree()
        close(session)

    return replaced(LlamaSession, "close", claims)


@contextmanager
def rejected_cells_stay(stem: str = "") -> Iterator[None]:
    """Rejected cells stay in the cache, at the positions before them. stem: of the file whose cache it is."""
    commit, truncate = LlamaSession._commit, LlamaKvCache.truncate
    rejecting = False

    def shifted(cache: LlamaKvCache, slot: SequenceSlot) -> None:
        if rejecting:
            start = len(slot.cached)
            n = cache._cpp.llama_memory_seq_pos_max(cache._memory, slot.sequence) + 1 - start
            cache._cpp.llama_memory_seq_add(cache._memory, slot.sequence, start, -1, -n)
        else:
            truncate(cache, slot)

    def commits(session: LlamaSession, tree: DraftTree, path: Sequence[int]) -> None:
        nonlocal rejecting
        rejecting = len(path) < len(tree) and stem in ("", session._cache._path.stem)
        commit(session, tree, path)
        rejecting = False

    with replaced(LlamaKvCache, "truncate", shifted), replaced(LlamaSession, "_commit", commits):
        yield


# What the state check must catch.
STATE_MISTAKES: dict[str, Callable[[], Planted[None]]] = {
    "rows swapped between sessions": swapped_rows,
    "the draft of a closed session is text": unverified_draft_as_text,
    "a rejected cell stays": rejected_cells_stay,
}


def requeued(change: Callable[[Probabilities, int], Probabilities]) -> Change:
    """Each node recorded with another q than it was drawn from."""

    def wrong(tree: DraftTree) -> DraftTree:
        if tree.q is None:
            return tree
        pairs = zip(tree.q, tree.tokens, strict=True)
        return replace(tree, q=tuple(None if q is None else change(q, x) for q, x in pairs))

    return wrong


def dropped(p_min: float) -> Change:
    """A token goes, with all below it, because its own q is low."""

    def wrong(tree: DraftTree) -> DraftTree:
        kept: list[bool] = []
        for node, parent in enumerate(tree.parents):
            q = None if tree.q is None else tree.q[node]
            likely = q is None or q[tree.tokens[node]] >= p_min
            kept.append(likely and (parent == ROOT or kept[parent]))
        return tree.filter(kept)

    return wrong


def softened(n_vocab: int) -> Change:
    """Greedy drafts, recorded with a softmax that they are the argmax of."""
    tail = float(np.log(n_vocab / 2))

    def wrong(tree: DraftTree) -> DraftTree:
        qs = (softmax(np.where(np.arange(n_vocab) == x, tail, 0.0)) for x in tree.tokens)
        return replace(tree, q=tuple(qs))

    return wrong


ADD = "growth.add(node, token, likely, growth.child_reach(node, likely), q)"
NEVER_RENORMALISED = (ADD, ADD.replace(", q)", ", full)"))
LIKELY = "likely = float(full[token])"
STOPPED = (LIKELY, LIKELY + "\n        if likely < growth.budget.p_min: break")


def mistakes(n_vocab: int) -> dict[str, Mistake]:
    """Everything that the sampled check must catch, for models of so many tokens."""
    found = {
        name: Mistake(TREE if "traversal" in name else CHAIN, judged(walk))
        for name, walk in broken.VERIFICATIONS.items()
    }
    return found | {
        "a deterministic draft rejected without zeroing it": Mistake(
            GREEDY, judged(broken.judged_by(broken.certainly_not_zeroed))
        ),
        "an argmax with a softmax q": Mistake(GREEDY, change=softened(n_vocab)),
        "q before its temperature": Mistake(
            CHAIN, change=requeued(lambda q, x: np.sqrt(q) / np.sqrt(q).sum())
        ),
        "q after another temperature": Mistake(CHAIN, change=requeued(lambda q, x: q**1.4 / (q**1.4).sum())),
        "bonus from the draft": Mistake(CHAIN, bonus_of_the_draft),
        "q before its top-k": Mistake(CHAIN, change=requeued(lambda q, x: 0.7 * q + 0.3 / len(q))),
        "a token dropped for its own q below 0.3": Mistake(CHAIN, change=dropped(0.3)),
        "a token dropped for its own q below 0.05": Mistake(CHAIN, change=dropped(0.05)),
        "a draw that stops at a token below p_min": Mistake(CHAIN, drawn(STOPPED)),
        "a sure rejection without residual, chain": Mistake(CHAIN, sure_rejection_without_residual),
        "a sure rejection without residual, tree": Mistake(TREE, sure_rejection_without_residual),
        "the draft draws from the target's stream, chain": Mistake(CHAIN, one_stream),
        "the draft draws from the target's stream, tree": Mistake(TREE, one_stream),
        "siblings without replacement, q never renormalised": Mistake(TREE, drawn(NEVER_RENORMALISED)),
        "ties broken towards the highest id": Mistake(CHAIN, highest_of_equals),
        "an end of text inside a draft that is not cut there": Mistake(
            CHAIN, lambda: replaced(decode, "truncate_at_stop", broken.cut_at_the_end_of_the_step)
        ),
    }


def loop(
    drafting: Drafting,
    target: FixedRowsTarget,
    draft: FixedRowsTarget,
    place: ContextRow,
    sampling: Sampling,
    change: Change,
) -> SamplingSetup:
    """Return the setup that `certify` makes of these settings, with `change` applied to the drafts."""
    drafter = model.ModelDrafter(
        draft, target.vocab.size, temperature=drafting.draft_temp, top_k=drafting.draft_top_k
    )
    budget = sampled_budget(drafting.budget)
    return SamplingSetup(target, Changed(drafter, change), place, budget, sampling, drafting.verify)


V = 48
TEXTS = np.random.default_rng(5).integers(V, size=(3, 40)).tolist()


def toy_loop(drafting: Drafting, change: Change = unchanged) -> tuple[SamplingSetup, list[Context]]:
    """A pair of toys with drafts of two tokens, and the places to choose from."""
    target, draft = ToyTarget(V, seed=2, sharpness=4.0), ToyTarget(V, seed=2, sharpness=4.0, noise=0.5)
    place = ContextRow()
    rows, theirs = ([record_rows(toy, text, 20) for text in TEXTS] for toy in (target, draft))
    held = [FixedRowsTarget(toy, np.concatenate(r), place) for toy, r in ((target, rows), (draft, theirs))]
    # Penalties that matter beside logits so far apart.
    sampling = replace(ALL_SAMPLERS, presence_penalty=-4.0)
    made = loop(replace(drafting, n_draft=2), held[0], held[1], place, sampling, change)
    return made, recorded_places(TEXTS, rows)
