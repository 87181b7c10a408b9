from __future__ import annotations

from typing import Any

import pytest

from chiasm.engine.frontend.answers import Answers, merge_output
from chiasm.engine.frontend.tokenizer import Tokenizer
from chiasm.errors import EngineDeadError, UserError
from chiasm.schema.chat import PreparedPrompt
from chiasm.schema.output import CompletionOutput, Logprob, RequestOutput, SequenceDelta
from chiasm.schema.plan import TokenLogprob
from chiasm.schema.sampling import SamplingParams
from tests.engine.frontend.support import make_item, token_id

PROMPT = PreparedPrompt("Hi", (1, 2, 3), (make_item(2).placed_at(0),))


def make_answers(tokenizer: Tokenizer, **params: Any) -> Answers:
    return Answers("request", PROMPT, SamplingParams(**params), tokenizer)


def news(token_ids: list[int], **fields: Any) -> SequenceDelta:
    return SequenceDelta("sequence", tuple(token_ids), **fields)


def take(answers: Answers, index: int, delta: SequenceDelta) -> CompletionOutput:
    """What one delta adds to one answer."""
    output = answers.take(index, delta)
    assert output is not None
    (answer,) = output.outputs
    assert answer.index == index
    return answer


def feed(answers: Answers, index: int, token_ids: list[int], **last: Any) -> CompletionOutput:
    """A whole answer, token by token; the last delta has the fields ``last``."""
    total: RequestOutput | None = None
    for position, each in enumerate(token_ids):
        output = answers.take(index, news([each], **(last if position == len(token_ids) - 1 else {})))
        if output is None:
            break
        total = merge_output(total, output, index + 1)
    assert total is not None
    return total.outputs[index]


def test_an_answer_ends_with_its_eos_token(tokenizer: Tokenizer) -> None:
    end = token_id(tokenizer, "<|im_end|>")
    ids = tokenizer.encode("Hello, 🙂!")
    answer = feed(make_answers(tokenizer), 0, [*ids, end], finish_reason="stop")
    assert answer.text == "Hello, 🙂!"
    assert answer.token_ids == [*ids, end]
    assert (answer.finish_reason, answer.stop_reason, answer.logprobs) == ("stop", None, None)


def test_an_answer_that_is_cut_shows_all_it_has(tokenizer: Tokenizer) -> None:
    ids = [*tokenizer.encode("the EN"), *tokenizer.encode("🙂")[:-1]]
    answer = feed(make_answers(tokenizer, stop="END"), 0, ids, finish_reason="length")
    assert answer.text == "the EN\ufffd"
    assert (answer.finish_reason, answer.stop_reason) == ("length", None)


@pytest.mark.parametrize("includes", [False, True])
def test_the_text_of_a_stop_token_is_left_out_like_a_stop_string(tokenizer: Tokenizer, includes: bool) -> None:
    ids = tokenizer.encode("a.")
    answers = make_answers(tokenizer, stop_token_ids=(ids[-1],), include_stop_str_in_output=includes)
    answer = feed(answers, 0, ids, finish_reason="stop", stop_token_id=ids[-1])
    assert answer.text == ("a." if includes else "a")
    assert answer.token_ids == ids
    assert (answer.finish_reason, answer.stop_reason) == ("stop", ids[-1])


@pytest.mark.parametrize("skip", [False, True])
def test_the_eos_token_shows_only_when_asked_for(tokenizer: Tokenizer, skip: bool) -> None:
    ids = tokenizer.encode("a<|im_end|>")
    params = {"skip_special_tokens": skip}
    assert feed(make_answers(tokenizer, **params), 0, ids, finish_reason="stop").text == "a"
    shown = feed(make_answers(tokenizer, include_stop_str_in_output=True, **params), 0, ids, finish_reason="stop")
    assert shown.text == ("a" if skip else "a<|im_end|>")


def test_a_stop_string_ends_one_answer_while_others_go_on(tokenizer: Tokenizer) -> None:
    answers = make_answers(tokenizer, n=3, stop="d")
    a, b, d = (tokenizer.encode(letter)[0] for letter in "abd")
    assert take(answers, 1, news([a])).text == "a"
    ended = take(answers, 1, news([d]))
    assert (ended.text, ended.finish_reason, ended.stop_reason) == ("", "stop", "d")
    assert list(answers.unfinished()) == [0, 2]

    assert answers.take(1, news([a])) is None, "the core had not heard of it yet"
    assert answers.take(1, news([], finish_reason="abort")) is None
    assert take(answers, 0, news([b], finish_reason="length")).finish_reason == "length"
    last = answers.take(2, news([a], finish_reason="stop"))
    assert last is not None
    assert last.finished
    assert list(answers.unfinished()) == []


def test_a_request_is_finished_with_its_last_answer(tokenizer: Tokenizer) -> None:
    answers = make_answers(tokenizer, n=2)
    finished = [answers.take(index, news([5], finish_reason="length")) for index in (1, 0)]
    assert [output and output.finished for output in finished] == [False, True]


def test_tokens_after_a_stop_string_are_left_out(tokenizer: Tokenizer) -> None:
    """Several tokens may come together; the answer is the same as if they came one by one."""
    ids = [tokenizer.encode(letter)[0] for letter in "abxcd"]
    entries = tuple(TokenLogprob(-float(i), 1, ()) for i in range(5))
    answers = make_answers(tokenizer, stop="bx", logprobs=0)
    answer = take(answers, 0, news(ids, logprobs=entries, finish_reason="length"))
    assert (answer.text, answer.token_ids, answer.finish_reason) == ("a", ids[:3], "stop")
    assert answer.logprobs is not None
    assert [list(entry) for entry in answer.logprobs] == [[each] for each in ids[:3]]
    assert answer.cumulative_logprob == -3.0
    assert answers.take(0, news([5])) is None


def test_a_stop_string_in_text_held_back_to_the_end_is_found(tokenizer: Tokenizer) -> None:
    smile = tokenizer.encode("🙂")
    answers = make_answers(tokenizer, stop="\ufffd")
    answer = take(answers, 0, news([*tokenizer.encode("a"), smile[0]], finish_reason="length"))
    assert (answer.text, answer.finish_reason, answer.stop_reason) == ("a", "stop", "\ufffd")


def test_logprobs_have_the_sampled_token_first_then_the_likeliest(tokenizer: Tokenizer) -> None:
    a, b, c = (tokenizer.encode(letter)[0] for letter in "abc")
    answers = make_answers(tokenizer, logprobs=2)
    entries = (TokenLogprob(-3.0, 7, ((a, -0.1), (b, -2.5))), TokenLogprob(-0.5, 1, ((b, -0.5), (c, -1.5))))
    answer = take(answers, 0, news([c, b], logprobs=entries))
    assert answer.logprobs is not None
    assert [list(entry.items()) for entry in answer.logprobs] == [
        [(c, Logprob(-3.0, 7, "c", b"c")), (a, Logprob(-0.1, 1, "a", b"a")), (b, Logprob(-2.5, 2, "b", b"b"))],
        [(b, Logprob(-0.5, 1, "b", b"b")), (c, Logprob(-1.5, 2, "c", b"c"))],
    ]
    assert answer.cumulative_logprob == -3.5
    more = take(answers, 0, news([a], logprobs=(TokenLogprob(-1.0, 1, ()),), finish_reason="length"))
    assert more.cumulative_logprob == -4.5


def test_a_sampled_token_that_ties_keeps_its_rank(tokenizer: Tokenizer) -> None:
    a, b = (tokenizer.encode(letter)[0] for letter in "ab")
    entry = TokenLogprob(-0.7, 1, ((a, -0.7), (b, -0.7)))
    answer = take(make_answers(tokenizer, logprobs=2), 0, news([b], logprobs=(entry,)))
    assert answer.logprobs == [{b: Logprob(-0.7, 1, "b", b"b"), a: Logprob(-0.7, 1, "a", b"a")}]


def test_without_logprobs_there_are_none(tokenizer: Tokenizer) -> None:
    answer = take(make_answers(tokenizer), 0, news([5]))
    assert answer.logprobs is None
    assert answer.cumulative_logprob is None


def test_numbers_of_the_prompt_are_repeated(tokenizer: Tokenizer) -> None:
    output = make_answers(tokenizer).take(0, news([5], num_cached_tokens=2))
    assert output is not None
    assert (output.request_id, output.prompt, output.prompt_token_ids) == ("request", "Hi", [1, 2, 3])
    assert (output.num_cached_tokens, output.num_image_tokens) == (2, 2)


def test_an_error_is_the_users_and_an_abort_is_the_engines(tokenizer: Tokenizer) -> None:
    answers = make_answers(tokenizer, n=2)
    for named, param in ((None, "messages"), ("allowed_token_ids", "allowed_token_ids")):
        delta = news([], finish_reason="error", error="this image could not be encoded.", error_param=named)
        with pytest.raises(UserError, match="could not be encoded") as caught:
            answers.take(0, delta)
        assert caught.value.param == param
    with pytest.raises(EngineDeadError):
        answers.take(1, news([], finish_reason="abort"))
    assert list(answers.unfinished()) == [0, 1], "all of the request is to be aborted"


def test_merging_a_stream_gives_whole_answers(tokenizer: Tokenizer) -> None:
    a, b, d = (tokenizer.encode(letter)[0] for letter in "abd")
    answers = make_answers(tokenizer, n=2, logprobs=0)
    total: RequestOutput | None = None
    steps: list[tuple[int, int, str | None]] = [(1, a, None), (0, b, None), (1, d, "length"), (0, a, "stop")]
    for index, each, reason in steps:
        entries = (TokenLogprob(-1.0, 1, ()),)
        output = answers.take(index, news([each], logprobs=entries, finish_reason=reason, num_cached_tokens=index))
        assert output is not None
        total = merge_output(total, output, 2)
        assert total.finished == output.finished
    assert total is not None
    first, second = total.outputs
    assert (first.text, first.token_ids, first.finish_reason) == ("b", [b, a], "stop")
    assert (second.text, second.token_ids, second.finish_reason) == ("ad", [a, d], "length")
    assert [list(entry) for entry in second.logprobs or []] == [[a], [d]]
    assert (first.cumulative_logprob, second.cumulative_logprob) == (-2.0, -2.0)
    assert total.finished
    assert (total.num_cached_tokens, total.num_image_tokens) == (0, 2)


def test_merging_keeps_answers_that_have_no_news_yet(tokenizer: Tokenizer) -> None:
    output = make_answers(tokenizer, n=3).take(1, news([5]))
    assert output is not None
    total = merge_output(None, output, 3)
    assert [answer.token_ids for answer in total.outputs] == [[], [5], []]


def test_a_token_that_is_no_whole_character_shows_its_bytes(tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode("\U0001f9ff")  # unknown to the vocabulary: a token for each byte
    assert len(tokens) > 1
    entries = tuple(TokenLogprob(-1.0, 1, ()) for _ in tokens)
    answer = take(make_answers(tokenizer, logprobs=0), 0, news(tokens, logprobs=entries))
    assert answer.logprobs is not None
    parts = [by_id[token].token_bytes for by_id, token in zip(answer.logprobs, tokens, strict=True)]
    assert b"".join(parts).decode() == "\U0001f9ff"
    special = min(tokenizer.special_ids)
    assert tokenizer.token_bytes(special).decode() == tokenizer.token_text(special)


def test_a_prompts_log_probabilities_come_whole_with_the_first_token_of_the_first_answer(
    tokenizer: Tokenizer,
) -> None:
    answers = make_answers(tokenizer, prompt_logprobs=1, n=2)
    scores = [TokenLogprob(-0.5, 1, ((2, -0.5),)), TokenLogprob(-3.0, 9, ((7, -0.25),))]
    assert answers.take(0, news([], prompt_logprobs=(scores[0],))) is None
    other = answers.take(1, news([5]))
    assert other is not None
    assert other.prompt_logprobs is None
    assert answers.take(0, news([], prompt_logprobs=(scores[1],))) is None
    first = answers.take(0, news([5]))
    assert first is not None
    assert first.prompt_logprobs is not None
    told = [likely and {i: (e.logprob, e.rank) for i, e in likely.items()} for likely in first.prompt_logprobs]
    assert told == [None, {2: (-0.5, 1)}, {3: (-3.0, 9), 7: (-0.25, 1)}]
    assert first.prompt_logprobs[1] is not None
    assert first.prompt_logprobs[1][2].decoded_token == tokenizer.token_text(2)
    later = answers.take(0, news([6]))
    assert later is not None
    assert later.prompt_logprobs is None
    total = merge_output(merge_output(None, first, 2), later, 2)
    assert total.prompt_logprobs == first.prompt_logprobs


def test_an_answer_that_nobody_reads_is_tokens_alone(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("Hello, 🙂!")
    answer = feed(make_answers(tokenizer, detokenize=False), 0, ids, finish_reason="length")
    assert (answer.text, answer.token_ids, answer.finish_reason) == ("", ids, "length")
