"""Chat templates run in a sandbox and fail with one clear error."""

import pytest

from paceline.core.errors import ModelError
from paceline.engines.chat import render

HI = [{"role": "user", "content": "<hi>"}]


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
    "template",
    [
        "{{ messages.__class__.__mro__ }}{{ ''.__class__.__subclasses__() }}",
        "{% set x = messages.append(1) %}",
        "{{ raise_exception('only system') }}",
        "{% if %}",
        "{{ undefined.attribute }}",
        "{{ range(999999999) }}",
    ],
)
def test_escapes_refusals_and_mistakes_are_model_errors(template: str) -> None:
    with pytest.raises(ModelError, match="chat template"):
        render(template, HI)
