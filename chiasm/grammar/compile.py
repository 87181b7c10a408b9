"""From the form that an answer must have to what follows its tokens (llguidance)."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

import llguidance

from chiasm.errors import UserError
from chiasm.grammar.reasons import reason_for_user
from chiasm.grammar.schemas import followed_schema
from chiasm.grammar.vocabulary import FormTokens
from chiasm.schema.structured import StructuredOutputs

_MAX_KEPT = 64  # compiled grammars
# Bounds on the work that a grammar makes; llguidance's own on its size, on compiling it and on each token are sound.
_LIMITS = llguidance.LLParserLimits(max_lexer_states=50_000, verbose_errors=False)


class GrammarCompiler:
    """Compiles forms for one model's tokens.

    Args:
        folder: of the checkpoint.
        vocab_size: rows of the output projection.
        eos_token_ids: tokens that end an answer.

    Attributes:
        vocab_size: as given.
        eos_token_ids: as given.
    """

    def __init__(self, folder: Path, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        self.vocab_size, self.eos_token_ids = vocab_size, tuple(eos_token_ids)
        self._tokens = FormTokens(folder, vocab_size, list(eos_token_ids))
        self._kept: OrderedDict[StructuredOutputs, llguidance.LLMatcher] = OrderedDict()

    def compile(self, form: StructuredOutputs) -> llguidance.LLMatcher:
        """What follows one answer of this form, from its first token.

        Raises:
            UserError: if there can be no such answer, or finding that out takes too much work.
        """
        key = form.key
        matcher = self._kept.get(key)
        if matcher is None:
            matcher = self._compile(form)
            self._kept[key] = matcher
            if len(self._kept) > _MAX_KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return matcher.deep_copy()

    def _compile(self, form: StructuredOutputs) -> llguidance.LLMatcher:
        try:
            matcher = llguidance.LLMatcher(self._tokens.tokenizer, self._grammar(form), log_level=0, limits=_LIMITS)
        except (ValueError, RecursionError) as error:
            raise _refusal(form, str(error)) from error
        first = matcher.deep_copy()
        if not first.is_error():
            first.compute_bitmask()  # which does much of the work, and finds forms that no answer has
        if first.is_error():
            raise _refusal(form, first.get_error())
        return matcher

    def _grammar(self, form: StructuredOutputs) -> str:
        """In llguidance's own notation."""
        if form.json is not None:
            return llguidance.LLMatcher.grammar_from_json_schema(json.dumps(followed_schema(json.loads(form.json))))
        if form.json_object:
            return llguidance.LLMatcher.grammar_from_json_schema(json.dumps(followed_schema({"type": "object"})))
        if form.regex is not None:
            return llguidance.LLMatcher.grammar_from_regex(form.regex)
        if form.choice is not None:
            return llguidance.LLMatcher.grammar_from_lark("start: " + " | ".join(map(json.dumps, form.choice)))
        assert form.grammar is not None
        return llguidance.grammar_from("grammar", self._tokens.with_ids(form.grammar))


def _refusal(form: StructuredOutputs, reason: str) -> UserError:
    shown = reason_for_user(reason, has_lines=form.grammar is not None)
    return UserError(f"{form.param} can't be followed: {shown}.", param=form.param)
