"""Chat templates run in a sandbox, within a budget, and fail with one clear error."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import dataclass

import pytest

from chat_attacks import ATTACKS
from paceline.core.errors import ModelError
from paceline.engines import chat
from paceline.engines.chat import render

HI = [{"role": "user", "content": "<hi>"}]
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + "
    "'<|im_end|>' + '\\n' }}{% endfor %}{{ '<|im_start|>assistant\\n' if add_generation_prompt }}"
)


def test_a_template_sees_messages_tokens_and_the_generation_prompt() -> None:
    template = "{{ bos_token }}{% for m in messages %}[{{ m['role'] }}] {{ m.content }}{% endfor %}"
    template += "{% if add_generation_prompt %}[assistant]{% endif %}{{ eos_token }}"
    assert render(template, HI, bos="<s>", eos="</s>") == "<s>[user] <hi>[assistant]</s>"


def test_json_is_not_escaped_for_html_and_loop_controls_work() -> None:
    assert render("{{ messages | tojson }}", HI) == '[{"role": "user", "content": "<hi>"}]'
    assert (
        render("{% for i in [1, 2, 3] %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", HI) == "1"
    )
    assert render("{{ strftime_now('%%') }}", HI) == "%"


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{{ 'a-b-c'.split('-')[1:] }}{{ 'abc'[::-1] }}{{ 'x'.join(['1', '2']) }}", "['b', 'c']cba1x2"),
        ("{{ 1 < 2 < 3 }}{{ 1 < 3 < 2 }}{{ 'a' in 'abc' }}{{ 'a' not in ['b'] }}", "TrueFalseTrueTrue"),
        ("{{ 2 ** 10 }}{{ 7 // 2 }}{{ 7 % 4 }}{{ 'ab' * 2 }}{{ '%02d|%s' % (3, 'x') }}", "102433abab03|x"),
        ("{{ '{:>4}|{a[0]}'.format(5, a=['x']) }}{{ '%s!' | format('hi') }}", "   5|xhi!"),
        ("{{ '{a}{b}'.format_map({'a': 1, 'b': 2}) }}{{ ('x{}' | attr('format'))(3) }}", "12x3"),
        ("{{ 1 ~ none ~ [2] ~ missing }}{{ {'a': 1, 2: 'b'}[2] }}", "1None[2]b"),
        ("{{ 'a\\nb' | indent(2) }}{{ [3, 1, 2] | sort | join(',') }}", "a\n  b1,2,3"),
        ("{{ [[1], [2]] | sum(start=[]) }}{{ [{'a': 2}, {'a': 3}] | sum('a') }}", "[1, 2]5"),
        (
            "{% for x in [1, 2, 3] if x != 2 %}{{ loop.index }}/{{ loop.length }}:{{ x }} {% endfor %}",
            "1/2:1 2/2:3 ",
        ),
        (
            "{% for x in [[1, []], [2, [[3, []]]]] recursive %}{{ x[0] }}{{ loop(x[1]) }}{% endfor %}",
            "123",
        ),
        (
            "{% macro m(a, b=2) %}{{ a }}{{ b }}{{ caller() }}{% endmacro %}{% call m(1) %}!{% endcall %}",
            "12!",
        ),
        (
            "{% set n = namespace(n=0) %}{% for i in [1, 2] %}{% set n.n = n.n + i %}{% endfor %}{{ n.n }}",
            "3",
        ),
        (
            "{% set t %}a1{% endset %}{{ t }}{% filter upper %}b{% endfilter %}{% block c %}d{% endblock %}",
            "a1Bd",
        ),
        ("{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | first }}", "<hi>"),
        (
            "{{ (messages | map(attribute='role') | unique | list)[0] }}{{ {'b': 1} | items | list }}",
            "user[('b', 1)]",
        ),
        (
            "{{ messages[0].name is defined }}{{ messages[0].name | default('?') }}{{ messages[0].name }}",
            "False?",
        ),
        ("{{ '<' | safe ~ '&' }}{{ '<' | e }}{{ ('<' | safe) + '&' }}", "<&&lt;<&amp;"),
        (
            "{{ {'a': [1]} | tojson(indent=1) }}{{ 'é' | tojson(ensure_ascii=true) }}",
            '{\n "a": [\n  1\n ]\n}"\\u00e9"',
        ),
    ],
)
def test_what_templates_do_is_done_as_ever(template: str, text: str) -> None:
    assert render(template, HI) == text


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages.__class__.__mro__ }}{{ ''.__class__.__subclasses__() }}",
        "{% set x = messages.append(1) %}",
        "{{ raise_exception('only system') }}",
        "{% if %}",
        "{{ undefined.attribute }}",
        "{{ range(999999999) }}",
        "{{ 'a'.encode() }}",
        "{{ dict.fromkeys([1]) }}",
        "{% autoescape true %}{{ '<' }}{% endautoescape %}",
        "{{ strftime_now('\\ud800') }}",
        "{{ strftime_now(none) }}",
        "{{ messages[0].tool_calls[0] }}",
        "{% include 'x' %}",
    ],
)
def test_escapes_refusals_and_mistakes_are_model_errors(template: str) -> None:
    with pytest.raises(ModelError, match="chat template"):
        render(template, HI)


@dataclass(frozen=True)
class Attacked:
    said: dict[str, str]
    megabytes: int


@pytest.fixture(scope="module")
def attacked() -> Attacked:
    """All of them, one after another in a process of its own."""
    script = """
import json, sys
from peak import peak_megabytes
from chat_attacks import ATTACKS
from paceline.core.errors import ModelError
from paceline.engines.chat import render
said = {}
for name, (template, _) in ATTACKS.items():
    try:
        said[name] = "rendered: " + render(template, [{"role": "user", "content": "<hi>"}])[:100]
    except ModelError as error:
        said[name] = str(error)
json.dump({"said": said, "megabytes": peak_megabytes()}, sys.stdout)
"""
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}{script}"],
        capture_output=True,
        timeout=600,
        check=True,
    )
    return Attacked(**json.loads(done.stdout))


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_template_that_does_too_much_is_refused_in_one_short_line(attacked: Attacked, attack: str) -> None:
    said = attacked.said[attack]
    assert re.match(f"the model's chat template {ATTACKS[attack][1]}", said), said
    assert said.isprintable()
    assert len(said) < 300


def test_all_of_these_together_take_little_memory(attacked: Attacked) -> None:
    assert attacked.megabytes < 500


@pytest.mark.parametrize("form", ["%1000000000Y", "%", "%Q%!", "", "%%" * 50, "a\x00b", "\ud800"])
def test_a_strange_date_is_short_or_an_error(form: str) -> None:
    try:
        said = render("{{ strftime_now(messages[0].content) }}", [{"role": "user", "content": form}])
    except ModelError as error:
        said = str(error)
    assert len(said) < 100_000


def test_what_is_said_is_one_short_line_whatever_a_template_says() -> None:
    with pytest.raises(ModelError) as refused:
        render("{{ raise_exception('one\\ntwo \\x1b[31m' ~ 'x' * 100000) }}", HI)
    said = str(refused.value)
    assert said.startswith("the model's chat template cannot be rendered: one\\ntwo \\x1b[31mxxx")
    assert said.endswith("x ...")
    assert said.isprintable()
    assert len(said) < 300


def test_the_budget_grows_with_the_messages() -> None:
    long = "word\n" * 1_000_000
    assert len(render(CHATML, [{"role": "user", "content": long}])) == len(long) + 50
    adding = (
        "{% set ns = namespace(t='') %}{% for m in messages %}{% set ns.t = ns.t + m.content %}{% endfor %}"
    )
    adding += "{% for m in messages %}{% for n in messages %}{% endfor %}{% endfor %}{{ ns.t }}"
    many = [{"role": "user", "content": "x" * 1_000}] * 400
    assert len(render(adding, many)) == 400_000
    with pytest.raises(ModelError, match="too much text"):
        render("{{ messages[0].content * 200 }}", [{"role": "user", "content": long}])


def test_a_template_may_be_so_long_and_no_longer() -> None:
    assert len(render("{{ 1 }}" + "a" * (chat.LONGEST - 7), HI)) == chat.LONGEST - 6
    with pytest.raises(ModelError, match="chat template is too long"):
        render("a" * (chat.LONGEST + 1), HI)
