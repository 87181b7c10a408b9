"""The tokenizer of the chart reader and the form of its conversations."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from chiasm.evals.charts.examples import make_chart, train_seed
from chiasm.evals.charts.fonts import PLAIN
from chiasm.evals.charts.plan import FULL
from chiasm.evals.charts.questions import ask
from chiasm.evals.charts.words import COLOURS, LABELS, TOPICS

SPECIAL_TOKENS = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>",
    "<|image_pad|>", "<|video_pad|>",
)  # fmt: skip

CHAT_TEMPLATE = """\
{%- for message in messages %}<|im_start|>{{ message['role'] }}
{% if message['content'] is string %}{{ message['content'] }}{% else %}
{%- for part in message['content'] %}
{%- if part['type'] in ('image', 'image_url') %}<|vision_start|><|image_pad|><|vision_end|>
{%- elif part['type'] in ('video', 'video_url') %}<|vision_start|><|video_pad|><|vision_end|>
{%- endif %}{% endfor %}
{%- for part in message['content'] %}
{%- if part['type'] == 'text' %}{{ part['text'] }}{% endif %}{% endfor %}
{%- endif %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
"""Pictures come first wherever the user put them, as in training."""

_CORPUS_CHARTS = 3000
_CLIP_TEXTS = (
    "Which bar grew?", "Which bar shrank?", "What was the value of A in the last frame?",
    "What was A in the first frame?", "How many frames are there?", "Did A grow?", "By how much did A grow?",
    "What is the sum of A and B?", "What is the average?", "How many bars are larger than A?", "What is the total?",
)  # fmt: skip
_WORDS = (
    rf"(?:{'|'.join(COLOURS)})(?!\p{{L}})|\p{{Lu}}\p{{Ll}}*|\p{{Ll}}+ ?|\p{{L}}+|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+|\s*[\r\n]+|\s"
)
"""Names and colours are tokens without a space, so that the one in a question is the one in an answer."""


def make_tokenizer() -> Tokenizer:
    """A byte-level BPE whose merges are learned from the generator's own text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=760, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(_corpus(), trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    return tokenizer


def _corpus() -> list[str]:
    texts = (
        ["user\nassistant\nsystem\n"] * 50
        + [*_CLIP_TEXTS] * 50
        + [word for word in (*LABELS, *TOPICS, *COLOURS) for _ in range(50)]
    )
    for index in range(_CORPUS_CHARTS):
        rng = Random(train_seed(index))
        chart = make_chart(rng, replace(FULL, faces=(PLAIN,)))
        for question in ask(chart.subject, rng, 4):
            texts += [question.text, question.answer]
    return texts


class Speech:
    """Conversations as token ids, exactly as the chat template writes them."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.image_pad = self.id("<|image_pad|>")
        self.user = self.encode("<|im_start|>user\n")
        self.vision_start = self.id("<|vision_start|>")
        self.vision_end = self.id("<|vision_end|>")
        self._turn = self.encode("<|im_end|>\n<|im_start|>assistant\n")
        self._end = [self.id("<|im_end|>")]

    def id(self, token: str) -> int:
        """The id of one token."""
        found = self.tokenizer.token_to_id(token)
        assert found is not None, token
        return int(found)

    def encode(self, text: str) -> list[int]:
        """Ids of a text."""
        return list(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def question(self, text: str) -> list[int]:
        """What follows the picture, up to where the answer begins."""
        return self.encode(text) + self._turn

    def token_at(self, text: str, char: int) -> int:
        """Which of a text's tokens holds a character."""
        found = self.tokenizer.encode(text, add_special_tokens=False).char_to_token(char)
        assert found is not None, text
        return int(found)

    def answer(self, text: str) -> list[int]:
        """The answer and the token that ends it."""
        return self.encode(text) + self._end
