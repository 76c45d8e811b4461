"""A draft without what the request's grammar forbids, so that no row is computed for it."""

from __future__ import annotations

from paceline.speculative.interfaces import Grammar
from paceline.speculative.tree import ROOT, DraftTree


def prune(tree: DraftTree, grammar: Grammar) -> DraftTree:
    """`tree` without forbidden tokens and everything below them.

    A forbidden token that was *sampled* stays, as a leaf: to drop it for what it turned out to be would bias
    the output (its q says what the target must make up for), and verification rejects it for certain. A
    drafter that heeds `Budget.grammar` never draws one. Probes are not emitted and stay.
    """
    kept: list[bool] = []
    fertile: list[bool] = []  # what hangs below may stay too
    for node, (parent, token) in enumerate(zip(tree.parents, tree.tokens, strict=True)):
        below = parent == ROOT or fertile[parent]
        allowed = below and (node in tree.probe or bool(grammar.mask(tree.path_tokens(parent))[token]))
        sampled = tree.q is not None and tree.q[node] is not None
        kept.append(allowed or (below and sampled))
        fertile.append(allowed)
    return tree if all(kept) else tree.only(kept)
