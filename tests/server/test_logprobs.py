"""Log-probabilities in the two forms, for tokens that are no text by themselves."""

from __future__ import annotations

from chiasm.schema.output import CompletionOutput, Logprob
from chiasm.server.logprobs import chat_logprobs, completion_logprobs

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
    reported = completion_logprobs(ANSWER, 7)
    assert reported is not None
    assert reported.tokens == ["bytes:\\xf0\\x9f", "bytes:\\x99\\x82", "<|im_end|>", " hi"]
    assert reported.text_offset == [7, 8, 9, 9]
    assert [len(likely) for likely in reported.top_logprobs] == [2, 1, 2, 1]
