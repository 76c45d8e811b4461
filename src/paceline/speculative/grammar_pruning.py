"""Grammars in drafting: forbidden tokens are pruned, and a failing grammar ends only that request.
The least number of tokens is a grammar, too."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from paceline.speculative.interfaces import Grammar
from paceline.speculative.sampling import Mask
from paceline.speculative.tree import ROOT, DraftTree
from paceline.speculative.vocabulary import Vocab


def prune_tree(tree: DraftTree, grammar: Grammar) -> DraftTree:
    """Return `tree` without forbidden tokens and their subtrees.
    A forbidden token that was *sampled* stays as a leaf, which verification always rejects: dropping it after
    the draw would bias the output. Probes are never emitted and stay."""
    keep: list[bool] = []
    expandable: list[bool] = []  # children may stay too
    for node, (parent, token) in enumerate(zip(tree.parents, tree.tokens, strict=True)):
        below = parent == ROOT or expandable[parent]
        allowed = below and (node in tree.probe or bool(grammar.mask(tree.path_tokens(parent))[token]))
        sampled = tree.q is not None and tree.q[node] is not None
        keep.append(allowed or (below and sampled))
        expandable.append(allowed)
    return tree if all(keep) else tree.filter(keep)


class SafeGrammar(Grammar):
    """A request's grammar for batched drafting. After an exception, kept in `error`, it allows no token;
    if masks are slow, none below a draft."""

    def __init__(self, grammar: Grammar, n_vocab: int) -> None:
        self._grammar, self._n_vocab = grammar, n_vocab
        self.error: Exception | None = None

    def mask(self, path: Sequence[int]) -> Mask:
        if self.error is None:
            try:
                if not (path and self._grammar.is_slow):
                    return self._grammar.mask(path)
            except Exception as error:
                self.error = error
        return np.zeros(self._n_vocab, dtype=np.bool_)

    def commit(self, tokens: Sequence[int]) -> None:
        self._grammar.commit(tokens)
        self._grammar = self._grammar.following or self._grammar


class NoEarlyEnd(Grammar):
    """A request's grammar, or none, without the end of the text before `min_tokens` tokens.
    Where the grammar leaves nothing else, it may end."""

    def __init__(self, grammar: Grammar | None, vocab: Vocab, min_tokens: int) -> None:
        self._grammar, self._remaining = grammar, min_tokens
        self._all = np.ones(vocab.size, dtype=np.bool_)
        self._no_end = self._all.copy()
        self._no_end[list(vocab.eos)] = False

    @property
    def is_slow(self) -> bool:
        return self._grammar is not None and self._grammar.is_slow

    @property
    def following(self) -> Grammar | None:
        return self if self._remaining > 0 else self._grammar

    def mask(self, path: Sequence[int]) -> Mask:
        allowed = self._all if self._grammar is None else self._grammar.mask(path)
        if len(path) >= self._remaining:
            return allowed
        going_on = allowed & self._no_end
        return going_on if going_on.any() else allowed

    def commit(self, tokens: Sequence[int]) -> None:
        self._remaining -= len(tokens)
        if self._grammar is not None:
            self._grammar.commit(tokens)
