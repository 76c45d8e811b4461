"""The vote of earlier places with the same ending on the tokens that follow.

Every place votes with the weight L**2 / (3 + rank), for as many tokens as its match length L allows. (On
recorded traces more is accepted than with the exact counts of SuffixDecoding, arXiv:2411.04975.) A token's
score is its share of the votes, smoothed by VOTE_SMOOTHING: few or short matches, however unanimous, are not
certain.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from paceline.drafters.suffix_history import SEPARATOR, Ints, compiled, find

VOTE_SMOOTHING = 1.0
MIN_PATH_PROBABILITY = 0.1
Floats = Any  # an array of floating-point numbers
Rules = tuple[float, float]  # p_min and p_split of the budget
Out = tuple[Ints, Ints, Floats]  # arrays for the tokens, parents and scores of a draft
History = tuple[Ints, Ints, Ints, int]  # ring, links, heads and total of a SuffixHistory

# Columns of a waiting branch. LOW, HIGH: the range of `order` with the places that vote for it.
# CHOICE: 1 if it has most votes of its parent's places.
REACH, LOW, HIGH, PARENT, DEPTH, TOKEN, SCORE, CHOICE = range(8)


@compiled
def continue_matches(
    ring: Ints, total: int, own: bool, ends: Ints, limits: Ints, low: int, high: int, ahead: Ints
) -> None:
    """Write the continuations of the places low to high into `ahead`, each ended by SEPARATOR.
    A place in the text itself (`own`) continues into its own continuation, as an LZ77 copy does."""
    depth, mask = ahead.shape[1], len(ring) - 1
    for place in range(low, high):
        end = ends[place]
        for i in range(depth):
            token = SEPARATOR
            if i < limits[place]:
                if end + i < total:
                    token = ring[(end + i) & mask]
                elif own:
                    token = ahead[place, end + i - total]
            ahead[place, i] = token
            if token == SEPARATOR:
                break


@compiled
def count_votes(
    ahead: Ints, depth: int, weights: Floats, order: Ints, low: int, high: int, choices: Ints, shares: Floats
) -> tuple[int, float]:
    """Collect the tokens that order[low:high] vote for (into `choices`) and their weights (into `shares`).
    Returns the number of tokens and the sum of weights."""
    n, every = 0, 0.0
    for i in range(low, high):
        token, weight = ahead[order[i], depth], weights[order[i]]
        if token != SEPARATOR:
            j = 0
            while j < n and choices[j] != token:
                j += 1
            if j == n:
                choices[n], shares[n] = token, 0.0
                n += 1
            shares[j] += weight
            every += weight
    return n, every


@compiled
def expand(
    branch: Floats,
    node: int,
    ahead: Ints,
    votes: tuple[Floats, Ints],
    width: int,
    rules: Rules,
    waiting: Floats,
    n: int,
) -> int:
    """Add the children of a drafted branch to `waiting`, each with its voters. Returns the number waiting."""
    (weights, order), (p_min, p_split) = votes, rules
    low, high, depth = int(branch[LOW]), int(branch[HIGH]), int(branch[DEPTH])
    choices, shares = np.empty(high - low, np.int64), np.empty(high - low, np.float64)
    tokens, every = count_votes(ahead, depth, weights, order, low, high, choices, shares)
    for rank in range(min(width, tokens)):
        best = 0
        for j in range(1, tokens):
            if shares[j] > shares[best]:
                best = j
        score = shares[best] / (every + VOTE_SMOOTHING)
        reach_probability = score * branch[REACH]
        least = p_split if rank else p_min
        if shares[best] == 0.0 or reach_probability < MIN_PATH_PROBABILITY or score < least:
            break
        shares[best] = 0.0
        row = waiting[n]
        row[REACH], row[SCORE], row[TOKEN] = reach_probability, score, choices[best]
        row[CHOICE], row[PARENT], row[DEPTH], row[LOW] = rank == 0, node, depth + 1, low
        for i in range(low, high):
            if ahead[order[i], depth] == choices[best]:
                order[i], order[low] = order[low], order[i]
                low += 1
        row[HIGH] = low
        n += 1
    return n


@compiled
def take_best(waiting: Floats, n: int, branch: Floats) -> int:
    """Move the likeliest of the n waiting branches to `branch`; return how many are left."""
    best = 0
    for i in range(1, n):
        if waiting[i, REACH] > waiting[best, REACH]:
            best = i
    branch[:] = waiting[best]
    waiting[best] = waiting[n - 1]
    return n - 1


@compiled
def grow(ahead: Ints, weights: Floats, nodes: int, width: int, rules: Rules, out: Out) -> int:
    """Draft the tree that the places vote for, likeliest path first. Returns the number of nodes."""
    (count, depth), (tokens, parents, scores) = ahead.shape, out
    votes = weights, np.arange(count)
    # Waiting branches have disjoint voters, so there are no more of them than places.
    waiting, branch = np.empty((count + 1, 8), np.float64), np.zeros(8, np.float64)
    branch[REACH], branch[HIGH] = 1.0, count
    left = expand(branch, -1, ahead, votes, width, rules, waiting, 0)
    n, leaves = 0, 1
    while left > 0 and n < nodes:
        left = take_best(waiting, left, branch)
        if branch[CHOICE] == 0.0:
            if leaves == width:
                continue
            leaves += 1
        tokens[n], parents[n], scores[n] = int(branch[TOKEN]), int(branch[PARENT]), branch[SCORE]
        n += 1
        if branch[DEPTH] < depth:
            left = expand(branch, n - 1, ahead, votes, width, rules, waiting, left)
    return n


@compiled
def draft(text: History, past: History, most: int, room: tuple[int, int, int], rules: Rules, out: Out) -> int:
    """Draft by up to `most` places in the request's text and as many in `past`. Returns the number of nodes.
    room: depth, nodes, width."""
    ring, links, heads, total = text
    shared, shared_links, shared_heads, shared_total = past
    depth, nodes, width = room
    ends, limits = np.empty(2 * most, np.int64), np.empty(2 * most, np.int64)
    mine = find(ring, links, heads, total, ring, total, most, ends, limits, 0)
    count = find(shared, shared_links, shared_heads, shared_total, ring, total, most, ends, limits, mine)
    weights, furthest = np.empty(count, np.float64), 0
    for place in range(count):
        # The request's own places come first, and so weigh more.
        weights[place] = limits[place] ** 2 / (3.0 + place)
        limits[place] = min(depth, limits[place])
        furthest = max(furthest, limits[place])
    if furthest == 0:
        return 0
    ahead = np.empty((count, furthest), np.int64)
    continue_matches(ring, total, True, ends, limits, 0, mine, ahead)
    continue_matches(shared, shared_total, False, ends, limits, mine, count, ahead)
    return grow(ahead, weights, nodes, width, rules, out)
