"""A template's tree with everything made visible that takes time: jinja2 lets a sandbox see calls and
arithmetic, and no loops, comparisons, slices or `~`."""

from __future__ import annotations

from collections.abc import Iterable

from jinja2 import nodes
from jinja2.visitor import NodeTransformer

from paceline.engines.sandbox.budget import BITS, RefusedError

# What is run as often as something asks for it, and not once for each time that what is around it runs.
REPEATED = (nodes.For, nodes.Macro, nodes.CallBlock, nodes.Block)


class Counting(NodeTransformer):
    """Each round of a loop, each call of a macro and each use of a block begins with a `tick` that pays for
    all that is written in it."""

    # ruff: noqa: N802  # jinja2 calls them by the names of its nodes

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        if node.test is not None:  # it is asked of each item, also of those that are left out
            node.test = nodes.And(_call(node, "tick", nodes.Const(_size([node.test]))), node.test)
        return _ticking(node)

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:
        self.generic_visit(node)
        return _ticking(node)

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.Node:
        self.generic_visit(node)
        return _ticking(node)

    def visit_Block(self, node: nodes.Block) -> nodes.Node:
        self.generic_visit(node)
        return _ticking(node)

    def visit_Compare(self, node: nodes.Compare) -> nodes.Expr:
        self.generic_visit(node)
        operands = [part for operand in node.ops for part in (nodes.Const(operand.op), operand.expr)]
        return _call(node, "compared", node.expr, *operands)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Expr:
        self.generic_visit(node)
        return _call(node, "joined", *node.nodes)

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Expr:
        self.generic_visit(node)
        if not isinstance(node.arg, nodes.Slice):
            return node
        ends = (node.arg.start, node.arg.stop, node.arg.step)
        return _call(node, "sliced", node.node, *(nodes.Const(None) if end is None else end for end in ends))

    def visit_Pair(self, node: nodes.Pair) -> nodes.Pair:
        self.generic_visit(node)
        if not isinstance(node.key, nodes.Const):
            node.key = _call(node, "looked_at", node.key)
        return node

    def visit_Const(self, node: nodes.Const) -> nodes.Const:
        if isinstance(node.value, int) and node.value.bit_length() > BITS:
            raise RefusedError(f"counts too far (an integer of over {BITS} bits)")
        return node

    def visit_ScopedEvalContextModifier(self, node: nodes.ScopedEvalContextModifier) -> nodes.Node:
        raise RefusedError("escapes for HTML (autoescape), which is not supported")


def _ticking(node: nodes.For | nodes.Macro | nodes.CallBlock | nodes.Block) -> nodes.Node:
    tick = _call(node, "tick", nodes.Const(1 + _size(node.body)))
    node.body.insert(0, nodes.ExprStmt(tick).set_lineno(node.lineno))
    return node


def _call(node: nodes.Node, name: str, *args: nodes.Expr) -> nodes.Call:
    """A call of one of the environment's own methods."""
    call = nodes.Call(nodes.EnvironmentAttribute(name), list(args), [], None, None)
    call.set_lineno(node.lineno)
    return call


def _size(written: Iterable[nodes.Node]) -> int:
    """How many nodes these are, without the bodies of what is repeated."""
    return sum(
        1 + _size(node.iter_child_nodes(exclude=("body",) if isinstance(node, REPEATED) else None))
        for node in written
    )
