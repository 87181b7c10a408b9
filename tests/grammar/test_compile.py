"""Forms -> which tokens may come."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from chiasm.errors import UserError
from chiasm.grammar.compile import GrammarCompiler
from chiasm.grammar.guide import AnswerGuide, GuideError
from chiasm.grammar.tools import calls_grammar, calls_or_form_grammar
from chiasm.schema.structured import CallFrame, StructuredOutputs, Thinking
from tests.checkpoints.common import SPECIAL_TOKENS, make_tokenizer

VOCAB_SIZE = 512  # more than the tokenizer has, as in published checkpoints
STOP_TOKEN = 77  # a request's own
POINT = {
    "type": "object",
    "properties": {"x": {"type": "integer"}, "label": {"type": "string"}},
    "required": ["x"],
    "additionalProperties": False,
}


class Setup:
    """A tokenizer and a compiler for it."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer: Tokenizer = make_tokenizer((*SPECIAL_TOKENS, "<think>", "</think>"))
        self.tokenizer.save(str(folder / "tokenizer.json"))
        self.eos = self.id("<|im_end|>")
        self.compiler = GrammarCompiler(folder, VOCAB_SIZE, [self.eos])

    def id(self, token: str) -> int:
        found = self.tokenizer.token_to_id(token)
        assert found is not None
        return int(found)

    def encode(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def guide(self, form: StructuredOutputs) -> AnswerGuide:
        return AnswerGuide(self.compiler.compile(form), form.thinking, VOCAB_SIZE, [self.eos, STOP_TOKEN])

    def allows(self, form: StructuredOutputs, token_ids: Sequence[int]) -> bool:
        """Whether an answer may be these tokens and then end."""
        guide = self.guide(form)
        for index, token_id in enumerate([*token_ids, self.eos]):
            guide.take(token_ids[:index])
            if token_id not in may_be(guide):
                return False
        return True

    def accepts(self, form: StructuredOutputs, text: str) -> bool:
        return self.allows(form, self.encode(text))


def may_be(guide: AnswerGuide) -> set[int]:
    mask = np.frombuffer(guide.allowed(), np.uint8)
    return set(np.flatnonzero(np.unpackbits(mask, bitorder="little")).tolist())


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> Setup:
    return Setup(tmp_path_factory.mktemp("tokenizer"))


FORMS: list[tuple[dict[str, Any], str, bool]] = [
    ({"json": POINT}, '{"x": 1}', True),
    ({"json": POINT}, '{"x":-12,"label":"é 🙂 \\" }"}', True),
    ({"json": POINT}, '{\n    "x": 1,\n    "label": ""\n}', True),
    ({"json": POINT}, '{"x": 1.5}', False),
    ({"json": POINT}, '{"label": "a"}', False),
    ({"json": POINT}, '{"x": 1, "z": 2}', False),
    ({"json": POINT}, '{"x": 1} ', False),
    ({"json": POINT}, ' {"x": 1}', False),
    ({"json": POINT}, '{"x": \n\n\n\n1}', False),
    ({"json": POINT}, '{"x": 1', False),
    ({"json": {"type": "string", "format": "date"}}, '"2026-11-30"', True),
    ({"json": {"type": "string", "format": "date"}}, '"soon"', False),
    ({"json": {"type": "string", "format": "password", "maxLength": 4}}, '"soon"', True),
    ({"json": {"type": "string", "format": "password", "maxLength": 4}}, '"later"', False),
    ({"json": {"type": ["string", "null"], "format": "x-phone"}}, '"1"', True),
    ({"json": {"type": "integer", "format": "int32"}}, "-7", True),
    (
        {"json": {"properties": {"format": {"const": "x-phone"}}, "required": ["format"]}},
        '{"format": "x-phone"}',
        True,
    ),
    ({"json": {"enum": [{"format": "x-phone"}]}}, '{"format": "x-phone"}', True),
    ({"json": {"enum": [{"format": "x-phone"}]}}, "{}", False),
    ({"json_object": True}, '{"a": [1, {"b": null}], "c": true}', True),
    ({"json_object": True}, "[1]", False),
    ({"json_object": True}, "Sure: {}", False),
    ({"regex": "[0-9]{3}(-[a-z]+)?"}, "123-ab", True),
    ({"regex": "[0-9]{3}"}, "1234", False),
    ({"choice": ("red", "reddish", 'a "b"\n')}, "reddish", True),
    ({"choice": ("red", "reddish", 'a "b"\n')}, "red", True),
    ({"choice": ("red", "reddish", 'a "b"\n')}, 'a "b"\n', True),
    ({"choice": ("red", "reddish", 'a "b"\n')}, "redd", False),
    ({"grammar": 'root ::= "a" b*\nb ::= "b" | "c"'}, "abcb", True),
    ({"grammar": 'start: "a" B*\nB: /[bc]/'}, "abcb", True),
    ({"grammar": 'start: "a" B*\nB: /[bc]/'}, "abd", False),
]


@pytest.mark.parametrize(("form", "text", "is_right"), FORMS)
def test_which_answers_a_form_allows(setup: Setup, form: dict[str, Any], text: str, is_right: bool) -> None:
    assert setup.accepts(StructuredOutputs(**form), text) == is_right


def test_an_answer_ends_where_its_form_does(setup: Setup) -> None:
    guide = setup.guide(StructuredOutputs(choice=("yes", "no")))
    guide.take(setup.encode("yes"))
    assert may_be(guide) == {setup.eos}


def test_no_token_beyond_the_tokenizer_is_allowed(setup: Setup) -> None:
    assert max(may_be(setup.guide(StructuredOutputs(regex="(?s:.*)")))) < setup.tokenizer.get_vocab_size()


def test_a_guide_knows_an_answer_by_its_tokens_alone(setup: Setup) -> None:
    form = StructuredOutputs(json=json.dumps(POINT))
    token_ids = setup.encode('{"x": 17, "label": "ab')
    steady, anew = setup.guide(form), setup.guide(form)
    for index in range(len(token_ids) + 1):
        steady.take(token_ids[:index])
    anew.take(token_ids)
    assert steady.allowed() == anew.allowed()


@pytest.mark.parametrize("is_open", [True, False])
def test_thinking_comes_before_a_form_and_ends_no_answer(setup: Setup, is_open: bool) -> None:
    start, end = setup.id("<think>"), setup.id("</think>")
    form = StructuredOutputs(choice=("yes", "no"), thinking=Thinking(start, end, is_open, barred=(66,)))
    thought = [*([] if is_open else [start]), *setup.encode("no, {"), start, end]
    guide = setup.guide(form)
    for index in range(len(thought)):
        guide.take(thought[:index])
        if index > 0 or is_open:
            assert may_be(guide) == {*range(VOCAB_SIZE)} - {setup.eos, STOP_TOKEN, 66}, index
        else:
            assert start in may_be(guide)
    guide.take(thought)
    assert may_be(guide) == may_be(setup.guide(StructuredOutputs(choice=("yes", "no"))))
    guide.take([*thought, *setup.encode("yes")])
    assert may_be(guide) == {setup.eos}


def test_a_model_need_not_think(setup: Setup) -> None:
    start, end = setup.id("<think>"), setup.id("</think>")
    form = StructuredOutputs(choice=("yes", "no"), thinking=Thinking(start, end, is_open=False))
    guide = setup.guide(form)
    assert may_be(guide) == may_be(setup.guide(form.key)) | {start}
    guide.take(setup.encode("yes")[:1])
    assert start not in may_be(guide)


CALLS = {
    "one": ('[{"name": "point", "arguments": {"x": 1}}]', True, True),
    "several": ('[{"name": "now", "arguments": {}}, {"name": "point", "arguments": {"x": 1}}]', True, False),
    "none": ("[]", False, False),
    "unknown": ('[{"name": "other", "arguments": {}}]', False, False),
    "another's arguments": ('[{"name": "point", "arguments": {"y": 1}}]', False, False),
}


@pytest.mark.parametrize("name", CALLS)
def test_forced_calls(setup: Setup, name: str) -> None:
    text, may_be_several, must_be_one = CALLS[name]
    schemas = {"point": POINT, "now": {"description": "\nroot ::= x\n"}}
    for is_parallel, expected in ((True, may_be_several), (False, must_be_one)):
        form = StructuredOutputs(grammar=calls_grammar(schemas, is_parallel=is_parallel))
        assert setup.accepts(form, text) == expected


@pytest.mark.parametrize(
    "schema", [{"type": ["object", "null"]}, {"type": "array"}, {"const": 5}, {"enum": [None, {"a": 1}]}]
)
def test_the_arguments_of_a_call_are_an_object(setup: Setup, schema: dict[str, Any]) -> None:
    form = StructuredOutputs(grammar=calls_grammar({"f": schema}, is_parallel=True))
    for arguments in ("null", "[]", "5"):
        try:
            assert not setup.accepts(form, f'[{{"name": "f", "arguments": {arguments}}}]')
        except UserError as error:
            assert "can't be followed" in error.message  # noqa: PT017 - either way there is no such call


HERMES = CallFrame("<tool_call>\n", "arguments", "\n</tool_call>", "\n")
NOW_CALL = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
CALLS_OR_FORM = {
    "the form": ('{"x": 1}', True, True),
    "a call": (NOW_CALL, True, True),
    "several calls": (f"{NOW_CALL}\n{NOW_CALL}", True, False),
    "words": ("Hm.", False, False),
    "the form and a call": ('{"x": 1}' + NOW_CALL, False, False),
    "another form": ('{"y": 1}', False, False),
    "a call of nothing": ('<tool_call>\n{"name": "other", "arguments": {}}\n</tool_call>', False, False),
}


@pytest.mark.parametrize("name", CALLS_OR_FORM)
def test_calls_or_a_form(setup: Setup, name: str) -> None:
    text, may_be_several, must_be_one = CALLS_OR_FORM[name]
    for is_parallel, expected in ((True, may_be_several), (False, must_be_one)):
        grammar = calls_or_form_grammar({"now": {}, "point": POINT}, HERMES, POINT, {}, is_parallel=is_parallel)
        assert setup.accepts(StructuredOutputs(grammar=grammar), text) == expected


def test_calls_between_special_tokens(setup: Setup) -> None:
    start, end = setup.id("<think>"), setup.id("</think>")
    frame = CallFrame("<think>", "parameters", "</think>", "")
    special = {"<think>": start, "</think>": end}
    grammar = calls_or_form_grammar({"now": {}}, frame, POINT, special, is_parallel=True)
    guide = setup.guide(StructuredOutputs(grammar=grammar))
    assert start in may_be(guide)
    called = [start, *setup.encode('{"name": "now", "parameters": {}}'), end]
    guide.take(called)
    assert may_be(guide) == {setup.eos, start}


@pytest.mark.parametrize(
    "around",
    [
        lambda schema: {"items": schema},
        lambda schema: {"prefixItems": [True, schema]},
        lambda schema: {"anyOf": [{"type": "integer"}, schema]},
        lambda schema: {"allOf": [schema]},
        lambda schema: {"additionalProperties": schema},
        lambda schema: {"properties": {"a": schema}},
        lambda schema: {"patternProperties": {"^a$": schema}},
        lambda schema: {"$ref": "#/$defs/a", "$defs": {"a": schema}},
        lambda schema: {"$ref": "#/definitions/a", "definitions": {"a": {"anyOf": [schema, False]}}},
    ],
)
def test_formats_without_a_meaning_are_notes_wherever_they_stand(setup: Setup, around: Any) -> None:
    for kind in ("password", "binary", "x-phone", ""):
        setup.compiler.compile(StructuredOutputs(json=around({"type": "string", "format": kind})))
    for kind in ("iri", "regex", "json-pointer"):
        with pytest.raises(UserError, match=f"Unknown format: {kind}"):
            setup.compiler.compile(StructuredOutputs(json=around({"type": "string", "format": kind})))


def test_formats_without_a_meaning_are_notes_in_calls(setup: Setup) -> None:
    schema = {"properties": {"a": {"type": "string", "format": "path"}}, "required": ["a"]}
    text = '[{"name": "f", "arguments": {"a": "b"}}]'
    assert setup.accepts(StructuredOutputs(grammar=calls_grammar({"f": schema}, is_parallel=True)), text)


HOSTILE: dict[str, dict[str, Any]] = {
    "no such type": {"json": {"type": "nope"}},
    "an unknown keyword": {"json": {"type": "object", "not": {}}},
    "a reference to elsewhere": {"json": {"$ref": "http://127.0.0.1:1/x"}},
    "nothing fits": {"json": {"anyOf": []}},
    "itself": {"json": {"$ref": "#"}},
    "half a class": {"regex": "["},
    "looking ahead": {"regex": "(?=a)a"},
    "half a class in a schema": {"json": {"type": "string", "pattern": "["}},
    "no grammar": {"grammar": "start: (((("},
    "an unknown rule": {"grammar": "start: nothing"},
    "an endless rule": {"grammar": "start: start"},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_forms_that_no_answer_can_have_are_refused(setup: Setup, name: str) -> None:
    form = StructuredOutputs(**HOSTILE[name], param="here")
    start = time.process_time()
    with pytest.raises(UserError, match=r"^here can't be followed: ") as caught:
        setup.compiler.compile(form)
    assert time.process_time() - start < 5
    assert len(caught.value.message) < 400
    assert caught.value.message.isprintable()
    assert caught.value.param == "here"


REASONS: list[tuple[dict[str, Any], str]] = [
    ({"grammar": "root ::= root root | root"}, "there is no text of this form."),
    ({"json": {"$ref": "#"}}, "there is no text of this form."),
    ({"json": {"$ref": "http://a.b/c"}}, "$ref http://a.b/c leads out of the schema, where nothing is read."),
    ({"json": {"type": "nope"}}, "Invalid type: nope."),
    ({"regex": "["}, "invalid regular expression: unclosed character class."),
    ({"regex": "error: \n 1 | [" + "a" * 5000}, "invalid regular expression: unclosed character class."),
    ({"json": {"type": "string", "pattern": "["}}, "invalid regular expression: unclosed character class."),
    ({"grammar": 'start: "a"\n  b ! c'}, "line 2, column 6: lexer error."),
    ({"grammar": 'start: "a" foo'}, 'line 1, column 8: unknown name: "foo".'),
    ({"grammar": "start: <nope>"}, 'line 1, column 8: unknown special token: "<nope>".'),
    ({"grammar": 'start: %json {"$ref": "http://a"}'},
     "line 1, column 8: $ref http://a leads out of the schema, where nothing is read."),
]  # fmt: skip


@pytest.mark.parametrize(("form", "reason"), REASONS)
def test_reasons_are_for_those_who_wrote_the_form(setup: Setup, form: dict[str, Any], reason: str) -> None:
    with pytest.raises(UserError) as caught:
        setup.compiler.compile(StructuredOutputs(**form, param="here"))
    assert caught.value.message == f"here can't be followed: {reason}"


NESTED = "(" * 12 + "a" + "{1,9})" * 12


@pytest.mark.parametrize("regex", ["(a+)+$", "(a|aa)+b", "(.*a){1,30}", "([a-z]{1,100}){1,100}", NESTED])
def test_expressions_that_make_others_backtrack_are_followed_or_given_up_soon(setup: Setup, regex: str) -> None:
    start = time.process_time()
    guide = setup.guide(StructuredOutputs(regex=regex))
    guide.take(setup.encode("a" * 200))
    with contextlib.suppress(GuideError):
        guide.allowed()
    assert time.process_time() - start < 5


def test_a_large_enumeration_is_compiled_in_time(setup: Setup) -> None:
    schema = {"enum": [f"value {i}" for i in range(8000)]}
    start = time.process_time()
    assert setup.accepts(StructuredOutputs(json=json.dumps(schema)), '"value 7999"')
    assert time.process_time() - start < 5
