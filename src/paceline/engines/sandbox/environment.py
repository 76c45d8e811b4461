"""jinja2's sandbox within a budget: it stops a template from reaching what is not its own, and nothing else.

All that a template can do goes through here: calls, filters, arithmetic and subscripts, which jinja2 hands to
a sandbox, and what counting.py makes visible. Nothing is computed while a template is compiled.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from types import GeneratorType, MappingProxyType
from typing import Any

from jinja2 import pass_context
from jinja2.filters import make_multi_attrgetter
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedFormatter
from jinja2.utils import Namespace
from markupsafe import EscapeFormatter, Markup

from paceline.engines.sandbox import bounds
from paceline.engines.sandbox.budget import CALL, Budget
from paceline.engines.sandbox.counting import Counting


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# What can be asked of a value by name. All else of these types makes bytes, tables or nothing that is of use.
_METHODS: Mapping[type, frozenset[str]] = MappingProxyType(
    {
        str: _words(
            "capitalize casefold center count endswith find format index isalnum isalpha isascii isdecimal "
            "isdigit isidentifier islower isnumeric isprintable isspace istitle isupper join ljust lower "
            "lstrip partition removeprefix removesuffix replace rfind rindex rjust rpartition rsplit rstrip "
            "split splitlines startswith strip swapcase title upper zfill"
        ),
        dict: _words("copy get items keys values"),
        list: _words("copy count index"),
        tuple: _words("count index grouper list"),
        int: frozenset(),
        float: frozenset(),
        type: frozenset(),
        GeneratorType: frozenset(),
    }
)
_FILTERS = _words(
    "abs attr capitalize count d default dictsort e escape first float format groupby indent int items join "
    "last length list lower map max min reject rejectattr replace reverse round safe select selectattr sort "
    "string sum title tojson trim unique upper"
)
# These don't look into what they are given, or only as far as it is asked for.
_SHALLOW = _words(
    "attr count d default first items last length list map reject rejectattr reverse select selectattr"
)
_EACH = _words("map reject rejectattr select selectattr")  # these go through what may be left out
_COMPARISONS: Mapping[str, Callable[[Any, Any], Any]] = MappingProxyType(
    {
        "eq": operator.eq,
        "ne": operator.ne,
        "gt": operator.gt,
        "gteq": operator.ge,
        "lt": operator.lt,
        "lteq": operator.le,
        "in": lambda one, many: one in many,
        "notin": lambda one, many: one not in many,
    }
)
_COMPARING = _words("== eq equalto != ne > gt greaterthan ge >= < lt lessthan <= le in")  # of tests
_JINJAS = ("_block_vars", "_loop_vars")  # what the compiler adds to a call's arguments, and takes out again


class _Formatter(SandboxedFormatter):
    """Each field of `str.format` is paid for before it is written as wide as it says."""

    def __init__(self, environment: Bounded, **options: Any) -> None:
        super().__init__(environment, **options)
        self._budget = environment.budget

    def get_field(self, field_name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        self._budget.work(1 + len(field_name))
        found = super().get_field(field_name, args, kwargs)
        self._budget.weigh(found[0])
        return found

    def format_field(self, value: Any, format_spec: str) -> Any:
        self._budget.room(characters=bounds.widths(format_spec))
        return super().format_field(value, format_spec)


class _EscapeFormatter(_Formatter, EscapeFormatter):
    pass


class _Notes(Namespace):
    """Written out it says nothing of what is in it, which may be itself."""

    def __repr__(self) -> str:
        return "<Namespace>"


class Bounded(ImmutableSandboxedEnvironment):
    """Of one rendering. Raises RefusedError while it compiles or renders a template that goes too far."""

    intercepted_binops = frozenset(ImmutableSandboxedEnvironment.default_binop_table)

    def __init__(self, budget: Budget, **options: Any) -> None:
        # Written in the context, so that jinja2 does not write it while it compiles.
        super().__init__(
            optimized=False, finalize=pass_context(lambda _, value: self.looked_at(value)), **options
        )
        self.budget = budget
        self.filters["tojson"] = tojson
        self.filters = {
            name: self._filter(name, function) for name, function in self.filters.items() if name in _FILTERS
        }
        self.tests = {
            name: self._looking(test) if name in _COMPARING else test for name, test in self.tests.items()
        }
        self.globals["namespace"] = _Notes
        del self.globals["lipsum"]

    def compiled(self, source: str) -> Any:
        return self.from_string(Counting().visit(self.parse(source)))

    # What counting.py calls.

    def tick(self, steps: int) -> bool:
        self.budget.work(steps)
        return True

    def compared(self, value: Any, *operations: Any) -> Any:
        """value, then by turns the name of a comparison and what it is compared with, as in `a < b < c`."""
        holds: Any = True
        for name, other in zip(operations[::2], operations[1::2], strict=True):
            if isinstance(other, Mapping) and name in ("in", "notin"):
                self.budget.weigh(value)
            else:
                self.looked_at(value, other)
            holds = _COMPARISONS[name](value, other)
            if not holds:
                break
            value = other
        return holds

    def joined(self, *values: Any) -> str:
        self.looked_at(*values)
        return self.concat(map(str, values))

    def sliced(self, value: Any, start: Any, stop: Any, step: Any) -> Any:
        return self._made(value[start:stop:step])

    def looked_at(self, *values: Any) -> Any:
        """The only value, or the first one, for what reads all of them: writes, compares or hashes."""
        for value in values:
            self.budget.weigh(value)
        return values[0]

    # What jinja2 calls.

    def concat(self, pieces: Iterable[str]) -> str:
        kept = []
        for piece in pieces:
            self.budget.write(len(piece))
            kept.append(piece)
        return "".join(kept)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "%" and isinstance(left, str):
            bounds.percent(self.budget, left, *(right if isinstance(right, tuple) else (right,)))
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            bounds.power(left, right)
        elif operator == "*":
            for values, count in ((left, right), (right, left)):
                if isinstance(values, (str, list, tuple)) and isinstance(count, int):
                    bounds.times(self.budget, values, count)
        return self._made(super().call_binop(context, operator, left, right))

    def call(self, context: Context, called: Any, /, *args: Any, **kwargs: Any) -> Any:
        owner = getattr(called, "__self__", None)
        if owner is self:
            return called(*args)
        self.budget.work(CALL + len(args) + len(kwargs))
        if isinstance(called, (Macro, LoopContext)):  # written in the template: they pay as they go
            return super().call(context, called, *args, **kwargs)
        args = tuple(self._listed(value) for value in args)
        named = {name: value for name, value in kwargs.items() if name not in _JINJAS}
        self.looked_at(owner if isinstance(owner, (str, list, tuple)) else None, *args, *named.values())
        if isinstance(owner, str) and (bound := bounds.METHODS.get(called.__name__)):
            bound(self.budget, owner, *args, **named)
        made = self._made(super().call(context, called, *args, **kwargs))
        if isinstance(owner, str) and isinstance(made, (list, tuple)):  # its pieces
            self.budget.write(len(owner))
        return made

    def getitem(self, obj: Any, argument: Any) -> Any:
        return super().getitem(obj, self.looked_at(argument))

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        for kind in type(obj).__mro__:
            if kind in _METHODS and attr not in _METHODS[kind]:
                return False
        return super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> Any:
        if super().wrap_str_format(value) is None:
            return None
        text: str = value.__self__
        escaping = {"escape": text.escape} if isinstance(text, Markup) else {}
        formatter = _EscapeFormatter(self, **escaping) if escaping else _Formatter(self)

        def wrapped(*args: Any, **kwargs: Any) -> str:
            if value.__name__ == "format_map":
                (kwargs,), args = args, ()
            return type(text)(formatter.vformat(text, args, kwargs))

        return wrapped

    # How filters and tests are bounded.

    def _filter(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        passed = int(hasattr(function, "jinja_pass_arg"))
        bound, attribute = bounds.FILTERS.get(name), bounds.ATTRIBUTES.get(name)

        @wraps(function)
        def bounded(*given: Any, **named: Any) -> Any:
            context, args = given[:passed], list(given[passed:])
            path = attribute(tuple(args[1:]), named) if attribute else None
            self.budget.work(CALL)
            if name in _EACH and args[0]:
                args[0] = self.budget.counted(args[0])
            if name not in _SHALLOW:
                args[0] = self._listed(args[0]) if attribute else args[0]
                self.looked_at(*args, *named.values())
                if path is not None:
                    of = make_multi_attrgetter(self, path)
                    self.looked_at([of(item) for item in args[0]])
            if bound:
                bound(self.budget, *args, **named)
            return self._made(function(*context, *args, **named))

        return bounded

    def _looking(self, test: Any) -> Callable[..., Any]:
        @wraps(test)
        def looking(*args: Any) -> Any:
            self.looked_at(*args)
            return test(*args)

        return looking

    def _listed(self, value: Any) -> Any:
        """What can be read only once cannot be looked at before it is used."""
        return list(self.budget.counted(value)) if isinstance(value, GeneratorType) else value

    def _made(self, value: Any) -> Any:
        if isinstance(value, GeneratorType):
            return self.budget.counted(value)
        self.budget.made(value)
        return value


def tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As transformers has it. jinja2's own filter escapes for HTML; prompts are plain text."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
