"""The requests of a load by the name of their data set."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path
from random import Random
from typing import Literal

from chiasm.bench.datasets.charts import chart_samples
from chiasm.bench.datasets.custom import custom_samples
from chiasm.bench.datasets.published import arena_samples, sharegpt4v_samples
from chiasm.bench.datasets.random_media import RandomMedia
from chiasm.bench.datasets.sample import Sample
from chiasm.errors import UserError, refuse

DatasetName = Literal["charts", "hf", "sharegpt4v", "random-mm", "custom"]

_MADE = ("charts", "random-mm")
_HF_NAMES = ("lmarena-ai/VisionArena-Chat", "lmarena-ai/vision-arena-bench-v0.1")
_ONLY_FOR = {"dataset_path": ("hf", "sharegpt4v", "custom"), "hf_name": ("hf",), "image_folder": ("sharegpt4v",)}
_DEFAULT_LENGTHS = {"charts": 24, "hf": 128, "sharegpt4v": 128}


@dataclass(frozen=True)
class Dataset:
    """Which requests.

    Attributes:
        name: of the data set.
        path: where it lies; those that are made have none.
        hf_name: whose form a local copy for ``hf`` has.
        split: of a published one.
        image_folder: of ``sharegpt4v``.
        output_len: most tokens of an answer; by the data set if None.
        random: what ``random-mm`` draws.
        oversample: whether to begin again where there are fewer requests than wanted.
        shuffle: whether those of a file come in an order drawn by lot.
    """

    name: DatasetName
    path: str | None = None
    hf_name: str | None = None
    split: str = "train"
    image_folder: Path | None = None
    output_len: int | None = None
    random: RandomMedia = field(default_factory=RandomMedia)
    oversample: bool = True
    shuffle: bool = False

    def take(self, count: int, seed: int) -> list[Sample]:
        """So many requests.

        Raises:
            UserError: if the data set can't be read, is empty, or has too few of them.
        """
        own = self._samples(seed)
        if self.name in _MADE:
            return list(islice(own, count))
        found = _drawn(own, count, Random(seed)) if self.shuffle else list(islice(own, count))
        if not found:
            raise UserError(f"Data set {self.path} is empty.", param="dataset_path")
        if len(found) < count and not self.oversample:
            refuse("num_prompts", count, f"at most the {len(found)} requests of {self.path} with --no-oversample")
        return list(islice(cycle(found), count))

    def _samples(self, seed: int) -> Iterator[Sample]:
        given = {"dataset_path": self.path, "hf_name": self.hf_name, "image_folder": self.image_folder}
        for name, value in given.items():
            takers = _ONLY_FOR[name]
            if value is not None and self.name not in takers:
                refuse(name, value, f"left out with --dataset-name {self.name}: it is for {', '.join(takers)}")
        if self.name == "random-mm":
            return self.random.samples(seed)
        if self.name == "custom":
            return custom_samples(self._place(), self.output_len)
        length = self.output_len or _DEFAULT_LENGTHS[self.name]
        if self.name == "charts":
            return chart_samples(seed, length)
        if self.name == "sharegpt4v":
            return sharegpt4v_samples(self._place(), self.image_folder, length)
        if (self.hf_name or _HF_NAMES[0]) not in _HF_NAMES:
            refuse("hf_name", self.hf_name, f"one of {', '.join(_HF_NAMES)}")
        return arena_samples(self._place(), self.split, length)

    def _place(self) -> str:
        if self.path is None:
            raise UserError(f"--dataset-name {self.name} needs --dataset-path.", param="dataset_path")
        return self.path


def _drawn(samples: Iterator[Sample], count: int, random: Random) -> list[Sample]:
    """At most ``count`` of them by lot, in an order by lot; no more are in memory (Vitter's algorithm R)."""
    drawn = list(islice(samples, count))
    for index, sample in enumerate(samples, start=count):
        place = random.randrange(index + 1)
        if place < count:
            drawn[place] = sample
    random.shuffle(drawn)
    return drawn
