"""Public formats of tool calls, and what models make of them."""

import pytest

from rlinf.agents.tools.parsers import parser_registry, register_parser
from rlinf.agents.tools.tool import Tool
from rlinf.agents.tools.toolbox import MalformedCall, Toolbox, ToolCall, ToolResult


def search(query: str, top: int = 3) -> str:
    """Search."""
    return query


def now() -> str:
    """Say what time it is."""
    return "noon"


BOX = Toolbox([Tool(search), Tool(now)])
FOUND = ToolCall("search", {"query": "a b"})


def parse(name, text):
    return parser_registry.lookup(name)(BOX).parse(text)


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ('<tool_call>\n{"name": "search", "arguments": {"query": "a b"}}\n</tool_call>', [FOUND]),
        (
            'so <tool_call>{"name": "now"}</tool_call> and '
            '<tool_call>{"name": "search", "arguments": "{\\"query\\": \\"a b\\"}"}</tool_call>',
            [ToolCall("now", {}), FOUND],
        ),
        ("no call {1}", []),
    ],
)
def test_qwen(text, calls):
    assert parse("qwen", text) == calls


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ('{"name": "search", "parameters": {"query": "a b"}}', [FOUND]),
        (
            '<|python_tag|>{"name": "now", "parameters": {}}; '
            '{"name": "search", "parameters": {"query": "a b"}}',
            [ToolCall("now", {}), FOUND],
        ),
        ('{"answer": 3}', []),
        ("the answer is 3", []),
    ],
)
def test_llama(text, calls):
    assert parse("llama_json", text) == calls


def test_search_r1_answers_in_the_text():
    assert parse("searchr1", "let me <search> a b </search>") == [FOUND]
    assert parse("searchr1", "<now></now><search>a b</search>") == [ToolCall("now", {}), FOUND]
    assert parse("searchr1", "<answer>3</answer>") == []
    tags = parser_registry.lookup("searchr1")(BOX)
    assert tags.stops == ("</search>", "</now>") and tags.inline
    results = [ToolResult("search", "found"), ToolResult("", "no", error=True)]
    assert tags.answer(results) == (
        "<information>found</information><information>error: no</information>"
    )


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("qwen", '<tool_call>{"name": "now"', "no </tool_call>"),
        ("qwen", "<tool_call>now()</tool_call>", "is no JSON"),
        ("qwen", "<tool_call>[1]</tool_call>", 'has a "name" and "arguments", not'),
        ("qwen", '<tool_call>{"name": 3}</tool_call>', 'has a "name"'),
        ("qwen", '<tool_call>{"name": "now", "arguments": [1]}</tool_call>', "must be an object"),
        ("qwen", '<tool_call>{"name": "now", "arguments": "x"}</tool_call>', "is no JSON"),
        ("llama_json", '{"name": "now", ', "no JSON"),
        ("llama_json", "<|python_tag|>now()", "no JSON"),
        ("llama_json", '<|python_tag|>{"x": 1}', 'has a "name" and "parameters"'),
        ("searchr1", "<search>a b", "has no </search>"),
        ("qwen", f"<tool_call>{'[' * 5000}</tool_call>", "is no JSON"),
        ("llama_json", f'{{"name": {"[" * 5000}', "no JSON"),
    ],
)
def test_malformed_calls_are_told_to_the_model(name, text, said):
    (call,) = parse(name, text)
    assert isinstance(call, MalformedCall) and said in call.problem


def test_answers_are_messages_elsewhere():
    results = [ToolResult("now", "noon"), ToolResult("", "no JSON", error=True)]
    assert parser_registry.lookup("qwen")(BOX).messages(results) == [
        {"role": "tool", "name": "now", "content": "noon"},
        {"role": "tool", "name": "", "content": "error: no JSON"},
    ]


def test_a_parser_of_ones_own_is_checked():
    class Nothing:
        def __init__(self, tools):
            pass

    with pytest.raises(ValueError, match="must have a method parse"):
        register_parser("nothing", Nothing)


@pytest.mark.parametrize("name", ["qwen", "llama_json", "searchr1"])
@pytest.mark.parametrize("calls", [[FOUND], [FOUND, ToolCall("now", {}), FOUND]])
def test_what_a_format_writes_it_reads(name, calls):
    parser = parser_registry.lookup(name)(BOX)
    assert parser.parse(parser.write(calls)) == calls
