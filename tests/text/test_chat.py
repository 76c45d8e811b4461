"""Chat templates run in a sandbox in another process, within limits, and fail with one clear error."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from paceline.speculative.errors import ModelError
from paceline.text import template_process
from paceline.text.template_process import render
from paceline.text.worker_process import WorkerProcess

HI = [{"role": "user", "content": "<hi>"}]
TEN_MB = "{% set b = 'ab' * 5000000 %}"
LOOP = "{% for i in range(100000) %}"
NESTED = "{% set ns = namespace(a=[1, 1]) %}{% for i in range(40) %}{% set ns.a = [ns.a, ns.a] %}{% endfor %}"


def test_a_template_sees_messages_tokens_and_the_generation_prompt() -> None:
    template = "{{ bos_token }}{% for m in messages %}[{{ m['role'] }}] {{ m.content }}{% endfor %}"
    template += "{% if add_generation_prompt %}[assistant]{% endif %}{{ eos_token }}"
    assert render(template, HI, bos_token="<s>", eos_token="</s>") == "<s>[user] <hi>[assistant]</s>"


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{{ messages | tojson }}", '[{"role": "user", "content": "<hi>"}]'),
        ("{% for i in [1, 2, 3] %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "1"),
        ("{% generation %}{{ strftime_now('%%') }}{% endgeneration %}", "%"),
    ],
)
def test_what_transformers_adds_to_jinja_is_there(template: str, text: str) -> None:
    assert render(template, HI) == text


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ messages.__class__.__mro__ }}{{ ''.__class__.__subclasses__() }}", "cannot be rendered"),
        ("{% set x = messages.append(1) %}", "cannot be rendered"),
        ("{{ raise_exception('only system') }}", "cannot be rendered: only system"),
        ("{% if %}", "cannot be rendered"),
        ("{{ messages[0].tool.name }}", "cannot be rendered: 'dict object' has no attribute 'tool'"),
        ("{% include 'x' %}", "cannot be rendered"),
        ("{{ range(999999999) }}", "cannot be rendered"),
        ("{{ strftime_now(none) }}", "cannot be rendered"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "is nested too deeply"),
        ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "is nested too deeply"),
        ("{{ 'a' * 10**9 }}", "takes too much memory"),
        ("{{ ([0] * 10**9) | length }}", "takes too much memory"),
        ("{{ '%1000000000d' % 1 }}", "takes too much memory"),
        (
            TEN_MB + "{% set ns = namespace(a=[]) %}" + LOOP + "{% set ns.a = ns.a + [b ~ i] %}{% endfor %}",
            "takes too much memory",
        ),
        (TEN_MB + LOOP + "{{ b }}{% endfor %}", "cannot be rendered: it makes too much text"),
        ("a" * (template_process.MAX_TEMPLATE + 1), "is too long"),
        ("{{ raise_exception('x' * 100000) }}", "cannot be rendered: xxx.*[.]{3}$"),
        ("{{ raise_exception('one\\ntwo \\x1b[31m') }}", r"cannot be rendered: one\\ntwo \\x1b\[31m$"),
    ],
)
def test_what_goes_too_far_is_refused_in_one_short_line(template: str, reason: str) -> None:
    with pytest.raises(ModelError, match=f"^the model's chat template {reason}") as refused:
        render(template, HI)
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 300
    assert render("{{ messages[0].content }}", HI) == "<hi>"


@pytest.mark.parametrize(
    "template", [LOOP * 3 + "{% endfor %}" * 3, NESTED + "{{ ns.a }}", "{{ 2 ** 1000000000 }}"]
)
def test_what_runs_for_too_long_is_ended(template: str, monkeypatch: pytest.MonkeyPatch) -> None:
    impatient = WorkerProcess(template_process.__name__, "", 0.3)
    monkeypatch.setattr(template_process, "_renderer", impatient)
    with pytest.raises(ModelError, match=r"too long|too much memory"):
        render(template, HI)
    impatient.close()


def test_ctrl_c_leaves_no_answer_for_the_next_template(monkeypatch: pytest.MonkeyPatch) -> None:
    render("a", HI)
    process = template_process._renderer._process
    assert process is not None
    assert process.stdout is not None

    def interrupted(_: int) -> bytes:
        raise KeyboardInterrupt

    monkeypatch.setattr(process.stdout, "read", interrupted)
    with pytest.raises(KeyboardInterrupt):
        render("b", HI)
    assert process.poll() is not None
    assert render("c", HI) == "c"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_process_has_a_renderer_of_its_own(tmp_path: Path) -> None:
    render("a", HI)
    process = template_process._renderer._process
    if not (child := os.fork()):
        try:
            (tmp_path / "said").write_text(render("b", HI))
            template_process._renderer.close()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert (tmp_path / "said").read_text() == "b"
    assert template_process._renderer._process is process
    assert render("c", HI) == "c"


def test_long_conversations_are_rendered() -> None:
    long = "word\n" * 1_000_000
    assert render("{{ messages[0].content }}", [{"role": "user", "content": long}]) == long
    quadratic = "{% for m in messages %}{% for n in messages %}{% endfor %}{{ m.content }}{% endfor %}"
    assert len(render(quadratic, [{"role": "user", "content": "x" * 1_000}] * 400)) == 400_000
