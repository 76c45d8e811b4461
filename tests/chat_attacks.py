"""Chat templates that would take all memory or time, each with what is said of it."""

from __future__ import annotations

TEXT, STEPS, COUNTS = "makes too much text", "ran for too long", "counts too far"
EITHER = f"({TEXT}|{STEPS})"
NEST = "{% set ns = namespace(a=[1, 1]) %}{% for i in range(40) %}{% set ns.a = [ns.a, ns.a] %}{% endfor %}"
TUPLES = "{% set ns = namespace(a=(1, 1)) %}{% for i in range(40) %}{% set ns.a = (ns.a, ns.a) %}{% endfor %}"
DEEP = "{% set ns = namespace(a=()) %}{% for i in range(50000) %}{% set ns.a = (ns.a,) %}{% endfor %}"
BIG = "{% set b = 'ab' * 5000000 %}"  # 10 MB, which is allowed
LOOP = "{% for i in range(100000) %}"

ATTACKS = {
    # text
    "multiplied text": ("{{ 'a' * 10**9 }}", TEXT),
    "multiplied from the left": ("{{ 1000000000 * 'a' }}", TEXT),
    "multiplied while compiling": ("{{ ('a' * 1000000000) | length }}", TEXT),
    "doubled text": ("{% set x = 'aaaaaaaa' %}" + "{% set x = x ~ x %}" * 40, TEXT),
    "added text": ("{% set x = 'aaaaaaaa' %}" + "{% set x = x + x %}" * 40, TEXT),
    "written in a loop": (BIG + LOOP + "{{ b }}{% endfor %}", EITHER),
    "caught in a loop": (BIG + "{% set t %}" + LOOP + "{{ b }}{% endfor %}{% endset %}", EITHER),
    "macro's text": (BIG + "{% macro m() %}" + "{{ b }}" * 9 + "{% endmacro %}{{ m() | length }}", EITHER),
    "kept texts": (
        "{% set ns = namespace(a=[]) %}" + BIG + LOOP + "{% set ns.a = ns.a + [b ~ i] %}{% endfor %}",
        TEXT,
    ),
    "kept pieces": (
        "{% set ns = namespace(a=[]) %}"
        + BIG
        + LOOP
        + "{% set ns.a = ns.a + [b.partition('a')] %}{% endfor %}",
        TEXT,
    ),
    "kept pieces of a split": (
        "{% set ns = namespace(a=[]) %}"
        + BIG
        + LOOP
        + "{% set ns.a = ns.a + b.rsplit('a', 1) %}{% endfor %}",
        TEXT,
    ),
    "sliced": (BIG + LOOP + "{% set x = b[1:] %}{% endfor %}", TEXT),
    "center": ("{{ 'a'.center(10**9) }}", TEXT),
    "ljust": ("{{ 'a'.ljust(1000000000) }}", TEXT),
    "rjust": ("{{ 'a'.rjust(1000000000) }}", TEXT),
    "zfill": ("{{ '1'.zfill(1000000000) }}", TEXT),
    "expandtabs": ("{{ '\t'.expandtabs(1000000000) }}", "cannot be rendered"),
    "to_bytes": ("{{ (1).to_bytes(1000000000, 'big') }}", "cannot be rendered"),
    "replace": (BIG + "{{ b.replace('', 'x' * 1000) | length }}", TEXT),
    "replace filter": (BIG + "{{ (b | replace('a', 'x' * 1000)) | length }}", TEXT),
    "join": (BIG + "{{ ([b] * 100000) | join | length }}", EITHER),
    "join method": (BIG + "{{ b.join(['a'] * 100000) | length }}", EITHER),
    "join separator": (BIG + "{{ range(100000) | join(b) | length }}", TEXT),
    "join attribute": (
        BIG + "{% set ns = namespace(b=b) %}{{ ([ns] * 100000) | join(attribute='b') | length }}",
        EITHER,
    ),
    "percent": ("{{ '%1000000000d' % 1 }}", TEXT),
    "percent precision": ("{{ '%.1000000000d' % 1 }}", TEXT),
    "percent star": ("{{ '%*d' % (1000000000, 1) }}", TEXT),
    "percent name": ("{{ '%(a(b))01000000000d' % {'a(b)': 1} }}", TEXT),
    "percent again": (BIG + "{{ ('%(b)s' * 1000) % {'b': b} }}", TEXT),
    "format filter": ("{{ '%1000000000s' | format(1) }}", TEXT),
    "format": ("{{ '{:>1000000000}'.format(1) }}", TEXT),
    "format precision": ("{{ '{:.1000000000f}'.format(1.5) }}", TEXT),
    "format nested": ("{{ '{:{}}'.format(1, 1000000000) }}", TEXT),
    "format named": ("{{ '{:{w}}'.format(1, w='>1000000000') }}", TEXT),
    "format markup": ("{{ ('{:>1000000000}' | safe).format(1) }}", TEXT),
    "format of a mapping": ("{{ '{a:>1000000000}'.format_map({'a': 1}) }}", TEXT),
    "format by a filter": ("{{ ('{:>1000000000}' | attr('format'))(1) }}", TEXT),
    "format again": (BIG + "{{ ('{0}' * 1000).format(b) }}", EITHER),
    "format subscripted": ("{% set f = 'a'['format'] %}{{ '{:>1000000000}'['format'](1) }}", TEXT),
    "indent": ("{{ 'a\nb' | indent(1000000000) }}", TEXT),
    "indent lines": ("{{ ('\n' * 100000) | indent(100000, blank=true) }}", TEXT),
    "tojson indent": ("{{ messages | tojson(indent=1000000000) }}", "indents too far"),
    "tojson separators": (BIG + "{{ range(100000) | list | tojson(separators=(b, b)) }}", TEXT),
    "tojson in ASCII": ("{% set b = 'ü' * 5000000 %}{{ b | tojson(true) }}", TEXT),
    "tojson in ASCII by name": ("{% set b = 'ü' * 5000000 %}{{ b | tojson(ensure_ascii=1) }}", TEXT),
    "tojson separators that are none": ("{{ [1] | tojson(separators=1000000000) }}", "cannot be rendered"),
    "upper in map": ("{% set b = 'a' * 100000 %}{{ ([b] * 10000) | map('upper') | list | length }}", TEXT),
    "multiplied by a filter's name": (
        "{{ range(100000) | map('string') | map('center', 10000) | list }}",
        "cannot be",
    ),
    "lipsum": ("{{ lipsum(1000000) }}", "cannot be rendered"),
    "markup": ("{{ ('a' | safe) * 1000000000 }}", TEXT),
    "block": (BIG + "{% block x %}" + "{{ 'ab' * 5000000 }}" * 9 + "{% endblock %}", TEXT),
    # lists
    "multiplied list": ("{{ ([0] * 10**9) | length }}", STEPS),
    "multiplied tuple": ("{{ ((0,) * 1000000000) | length }}", STEPS),
    "added lists": ("{% set x = [1, 2, 3, 4] %}" + "{% set x = x + x %}" * 40, STEPS),
    "letters": (BIG + "{{ b | list | length }}", STEPS),
    "split": (BIG + "{{ b.split('a') | length }}", STEPS),
    "split at spaces": ("{% set b = 'a ' * 5000000 %}{{ b.split() | length }}", STEPS),
    "lines": ("{% set b = '\u2028' * 5000000 %}{{ b.splitlines() | length }}", STEPS),
    "title": (BIG + "{{ b | title }}", STEPS),
    "batch": ("{{ [1] | batch(1000000000, 0) | list }}", "cannot be rendered"),
    "slice": ("{{ [1] | slice(1000000000) | list }}", "cannot be rendered"),
    "listed again and again": ("{{ ([range(100000)] * 100000) | map('list') | list | length }}", STEPS),
    "summed lists": ("{{ ([[0] * 100] * 9000) | sum(start=[]) | length }}", EITHER),
    "long attribute": (
        "{% set p = 'a.' * 5000000 %}{{ messages | map(attribute=p) | list }}",
        "looks for a name",
    ),
    "long attribute of a test": ("{{ messages | selectattr('a.' * 5000000) | list }}", "looks for a name"),
    # integers
    "squared": ("{% set x = 99999 %}" + "{% set x = x * x %}" * 60, COUNTS),
    "power": ("{{ 2 ** 1000000000 }}", COUNTS),
    "power of a power": ("{{ 9 ** 9 ** 9 ** 9 }}", COUNTS),
    "squared in a loop": (
        "{% set ns = namespace(x=3) %}" + LOOP + "{% set ns.x = ns.x * ns.x %}{% endfor %}",
        COUNTS,
    ),
    "written out": ("{{ " + "9" * 1000 + " }}", COUNTS),
    "hexadecimal": ("{{ 0x" + "f" * 1000 + " % 7 }}", COUNTS),
    "many digits": ("{{ 1" + "0" * 50000 + " }}", "cannot be rendered"),
    "parsed": ("{{ ('f' * 1000000) | int(0, 16) % 7 }}", COUNTS),
    "float's digits": ("{{ 1e300 | int }}", COUNTS),
    "rounded": ("{{ 5 | round(-1000000000) }}", "rounds to too many digits"),
    "rounded up": ("{{ 5 | round(1000000000, 'ceil') }}", "rounds to too many digits"),
    # steps
    "nested loops": (LOOP * 3 + "{% endfor %}" * 3, STEPS),
    "nested loops that are marked": (
        "{% generation %}" + LOOP * 3 + "{% endfor %}" * 3 + "{% endgeneration %}",
        STEPS,
    ),
    "nested loops that write": (LOOP * 3 + "x{% endfor %}" * 3, STEPS),
    "loops that leave out all": (
        LOOP + "{% for j in range(100000) if false %}{% endfor %}{% endfor %}",
        STEPS,
    ),
    "wide loop": (LOOP + "{{ '' }}{% if 1 %}{% endif %}" * 1000 + "{% endfor %}", STEPS),
    "loop over text": (BIG + "{% for c in b %}{% endfor %}", STEPS),
    "lazy loop": (LOOP + "{% if range(100000) | select('string') | first %}{% endif %}{% endfor %}", STEPS),
    "macro calls macro": (
        "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
        STEPS,
    ),
    "caller": (
        "{% macro m() %}"
        + "{{ caller() }}" * 100
        + "{% endmacro %}"
        + "{% call m() %}" * 4
        + "x"
        + "{% endcall %}" * 4,
        STEPS,
    ),
    "block calls block": (
        "{% block a %}x{% endblock %}{% block b %}" + "{{ self.a() }}" * 100 + "{% endblock %}"
        "{% block c %}" + "{{ self.b() }}" * 100 + "{% endblock %}" + LOOP + "{{ self.c() }}{% endfor %}",
        STEPS,
    ),
    "recursive loop": (
        NEST.replace("40", "60")
        + "{% for x in ns.a recursive %}{% if x != 1 %}{{ loop(x) }}{% endif %}{% endfor %}",
        STEPS,
    ),
    "arguments": (
        "{% macro m() %}{{ varargs | length }}{% endmacro %}" + LOOP + "{{ m(*range(100000)) }}{% endfor %}",
        STEPS,
    ),
    "searched again and again": (BIG + LOOP + "{{ b.find('zz') }}{% endfor %}", STEPS),
    "read again and again": (BIG + LOOP + "{{ b.isalpha() }}{% endfor %}", STEPS),
    "looked for in a range": (LOOP + "{{ 0.5 in range(100000) }}{% endfor %}", STEPS),
    "sums of ranges": ("{{ ([range(100000)] * 100000) | map('sum') | list | length }}", STEPS),
    "searched from the right": (
        "{% set s = 'a' * 5000000 %}{{ s.rfind('b' + 'a' * 2000000) }}",
        STEPS,
    ),
    "split from the right": (
        "{% set s = 'a' * 5000000 %}{{ s.rsplit('b' + 'a' * 2000000) | length }}",
        STEPS,
    ),
    "stripped": ("{% set s = 'b' * 5000000 %}{{ s.strip('a' * 2000000 + 'b') }}", STEPS),
    "trimmed": ("{% set s = 'b' * 5000000 %}{{ s | trim('a' * 2000000 + 'b') }}", STEPS),
    "sorted": (
        "{% set s = 'a' * 5000000 %}{{ [s ~ 'b', s ~ 'c'] * 100000 | sort | length }}",
        "cannot be|ran for",
    ),
    "sorted texts": (
        "{% set s = 'a' * 2000000 %}{{ (([s ~ 'b', s ~ 'c']) * 100000) | sort | length }}",
        STEPS,
    ),
    # lists that hold one another
    "written": (NEST + "{{ ns.a }}", STEPS),
    "as text": (NEST + "{{ ns.a | string | length }}", STEPS),
    "beside text": (NEST + "{{ (ns.a ~ '') | length }}", STEPS),
    "in a format": (NEST + "{{ '{}'.format(ns.a) | length }}", STEPS),
    "repr in a format": (NEST + "{{ '{!r:>5}'.format(ns.a) | length }}", STEPS),
    "percent of": (NEST + "{{ ('%s' % (ns.a,)) | length }}", STEPS),
    "as JSON": (NEST + "{{ ns.a | tojson }}", STEPS),
    "joined": (NEST + "{{ ns.a | join }}", STEPS),
    "safe": (NEST + "{{ ns.a | safe }}", STEPS),
    "made upper": (NEST + "{{ ns.a | upper }}", STEPS),
    "compared": (NEST + "{% set x = ns.a %}" + NEST + "{{ x == ns.a }}", STEPS),
    "compared by a test": (NEST + "{% set x = ns.a %}" + NEST + "{{ x is eq ns.a }}", STEPS),
    "looked for": (NEST + "{% set x = ns.a %}" + NEST + "{{ x in [ns.a] }}", STEPS),
    "counted": (NEST + "{% set x = ns.a %}" + NEST + "{{ [x].count(ns.a) }}", STEPS),
    "selected": (
        NEST + "{% set x = ns.a %}" + NEST + "{{ [x] | select('eq', ns.a) | list | length }}",
        STEPS,
    ),
    "least": (NEST + "{% set x = ns.a %}" + NEST + "{{ [x, ns.a] | min }}", STEPS),
    "changed": (
        NEST + "{% set x = ns.a %}" + NEST + "{% for y in [x, ns.a] %}{{ loop.changed(y) }}{% endfor %}",
        STEPS,
    ),
    "hashed as a key": (TUPLES + "{{ {ns.a: 1} | length }}", STEPS),
    "hashed as a subscript": (TUPLES + "{{ messages[0][ns.a] }}", STEPS),
    "hashed by get": (TUPLES + "{{ messages[0].get(ns.a) }}", STEPS),
    "hashed by unique": (TUPLES + "{{ [ns.a] | unique | list }}", STEPS),
    "told in an error": (NEST + "{{ raise_exception(ns.a) }}", STEPS),
    "told as a name": (TUPLES + "{{ messages[ns.a].x }}", STEPS),
    "too deep to write": (DEEP + "{{ ns.a }}", "nests lists too deeply"),
    "too deep to hash": (DEEP + "{{ {ns.a: 1} }}", "nests lists too deeply"),
    "too deep to get": (DEEP + "{{ messages[0].get(ns.a) }}", "nests lists too deeply"),
    "in itself": (
        "{% set ns = namespace() %}{% set ns.a = [ns] %}" + "{{ ns.a | tojson }}",
        "cannot be rendered",
    ),
    # depth
    "macro calls itself": (
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "is nested too deeply, or calls",
    ),
    "block holds itself": ("{% block a %}{{ self.a() }}{% endblock %}", "is nested too deeply, or calls"),
    "parentheses": ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "is nested too deeply"),
    "attributes": ("{{ messages" + ".a" * 20000 + " }}", "is nested too deeply"),
    "sums": ("{{ 1" + " + 1" * 10000 + " }}", "is nested too deeply"),
    "negations": ("{{ " + "not " * 10000 + "1 }}", "is nested too deeply"),
    "conditions": ("{% if 1 %}" * 2000 + "{% endif %}" * 2000, "is nested too deeply|cannot be rendered"),
    "format of a format": ("{{ '{:{:{:{}}}}'.format(1, 2, 3, 4) }}", "cannot be rendered"),
    # other
    "date": ("{{ strftime_now('%Y' * 1000000) }}", "asks for a date"),
    "long name": ("{{ raise_exception('x' * 1000000) }}", "cannot be rendered: xxx"),
    "message's missing attribute": (
        "{{ messages[0].tool.name }}",
        "cannot be rendered: 'dict object' has no",
    ),
}
