"""Chat templates as transformers renders them, in a sandbox, with errors of one line."""

from __future__ import annotations

import re

import pytest

from engines.errors import BundleCorruptError, UsageError
from runtime.text import ChatTemplate

SMOLLM2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging "
    "Face<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + "
    "message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
USER = [{"role": "user", "content": "Hi <b>"}]


def render(source: str, **special_tokens: str) -> str:
    return ChatTemplate(source, special_tokens).render(USER)


def test_smollm2_inserts_its_default_system_prompt() -> None:
    assert render(SMOLLM2) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging "
        "Face<|im_end|>\n<|im_start|>user\nHi <b><|im_end|>\n<|im_start|>assistant\n"
    )


def test_smollm2_keeps_a_given_system_prompt_and_can_leave_the_answer_open() -> None:
    messages = [{"role": "system", "content": "Be brief."}, *USER]
    text = ChatTemplate(SMOLLM2, {}).render(messages, add_generation_prompt=False)
    assert text == ("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi <b><|im_end|>\n")


def test_blocks_leave_no_white_space_behind() -> None:
    """Without trim_blocks and lstrip_blocks every line of a template adds tokens to the prompt."""
    source = "{{ bos_token }}\n  {% if true %}\n{{ messages[0].content }}\n  {% endif %}\nend"
    assert render(source, bos_token="<s>") == "<s>\nHi <b>\nend"


def test_tojson_does_not_escape_for_html_or_ascii() -> None:
    assert render("{{ {'b': '<é>', 'a': 1} | tojson }}") == '{"b": "<é>", "a": 1}'
    assert render("{{ [1] | tojson(indent=2) }}") == "[\n  1\n]"


def test_names_that_templates_rely_on_exist() -> None:
    assert re.fullmatch(r"\d{4}", render("{{ strftime_now('%Y') }}"))
    assert render("{% for i in [1, 2] %}{{ i }}{% break %}{% endfor %}") == "1"
    assert render("{% if tools is none and not documents %}none{% endif %}") == "none"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{% if %}", "does not compile"),
        ("{{ raise_exception('roles must\n alternate') }}", "roles must alternate"),
        ("{{ none + 'x' }}", "unsupported operand"),
        ("{{ messages[9].content.x }}", "no element 9"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "'append' of 'list' object is unsafe;"),
        ("{% for i in range(10**9) %}{% endfor %}", "too big"),
    ],
)
def test_a_failing_template_is_one_line_with_its_reason(source: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason) as caught:
        render(source)
    assert "\n" not in str(caught.value)


def test_bytes_that_are_no_text_are_refused() -> None:
    with pytest.raises(BundleCorruptError, match=r"not UTF-8 \(byte 2\)"):
        ChatTemplate.from_bytes(b"ab\xff", {})


def test_the_advice_is_the_callers() -> None:
    with pytest.raises(UsageError, match=r"no way; ask somebody$"):
        ChatTemplate("{{ raise_exception('no way') }}", {}, advice="ask somebody").render(USER)
