"""Log-probabilities in the two forms, for tokens that are no text by themselves."""

from __future__ import annotations

from chiasm.schema.output import CompletionOutput, Logprob
from chiasm.server.logprobs import chat_logprobs, completion_logprobs, echoed_logprobs

FIRST = Logprob(-0.5, 1, "\ufffd", b"\xf0\x9f")
REST = Logprob(-0.25, 1, "\ufffd", b"\x99\x82")
END = Logprob(-1.0, 1, "<|im_end|>", b"<|im_end|>", is_special=True)
WORD = Logprob(-2.0, 1, " hi", b" hi")
ANSWER = CompletionOutput(
    0, "", [1, 2, 3, 4], logprobs=[{1: FIRST, 2: REST}, {2: REST}, {3: END, 4: WORD}, {4: WORD}]
)


def test_chat_tells_a_tokens_own_bytes() -> None:
    reported = chat_logprobs(ANSWER, 1)
    assert reported is not None
    assert b"".join(bytes(entry.bytes) for entry in reported.content[:2]).decode() == "🙂"


def test_completions_name_tokens_apart_and_count_no_text_for_special_ones() -> None:
    reported, offset = completion_logprobs(ANSWER, 7)
    assert reported is not None
    assert reported.tokens == ["bytes:\\xf0\\x9f", "bytes:\\x99\\x82", "<|im_end|>", " hi"]
    assert (reported.text_offset, offset) == ([7, 8, 9, 9], 12)
    assert [len(likely) for likely in reported.top_logprobs] == [2, 1, 2, 1]


def test_tokens_that_the_tokenizer_puts_around_a_prompt_have_no_length_in_what_is_echoed() -> None:
    scores = [None, {7: Logprob(-1.0, 1, "<b>", b"<b>", is_special=True)}, {4: WORD}, {3: END}]
    token_ids = [9, 7, 4, 3]
    for text, offsets in (("<b> hi", [0, 0, 3, 6]), ("<s><b> hi<|im_end|>", [0, 3, 6, 9]), (" hi", [0, 0, 0, 3])):
        assert echoed_logprobs(token_ids, scores, "<s>", text).text_offset == offsets
    assert echoed_logprobs([1, 4], [None, {4: WORD}], "\ufffd", "\u00e9 hi").text_offset == [0, 1]
