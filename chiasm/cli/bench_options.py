"""What the commands of ``chiasm bench`` ask, and how."""

# ruff: noqa: RUF009 - option() is dataclasses.field() with a help text

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from chiasm.cli.option_groups import option
from chiasm.errors import UserError, refuse

if TYPE_CHECKING:
    from chiasm.bench.datasets.choose import Dataset
    from chiasm.bench.datasets.random_media import RandomMedia
    from chiasm.bench.serve.arrivals import Arrivals

DatasetOption = Literal["charts", "hf", "sharegpt4v", "random-mm", "custom"]


@dataclass(frozen=True, kw_only=True)
class DatasetOptions:
    """What to ask."""

    dataset_name: DatasetOption = option("charts", "charts and random-mm are made, the others read.")
    dataset_path: str | None = option(None, "File, folder, or the hub's name.", metavar="PATH")
    hf_name: str | None = option(None, "Whose form a local copy for hf has.")
    hf_split: str = option("train", "Of the data set.")
    image_folder: Path | None = option(None, "Where the pictures of sharegpt4v lie.")
    input_len: int = option(
        1024, "Words of text in a prompt of random-mm.", "--input-len", "--random-input-len", min=0
    )
    output_len: int | None = option(
        None,
        "Most tokens of an answer; by the data set if not given.",
        "--output-len",
        "--random-output-len",
        "--hf-output-len",
        "--custom-output-len",
        min=1,
    )
    random_range_ratio: float = option(0.0, "How far the lengths of random-mm vary.")
    random_mm_base_items_per_request: int = option(1, "Images and videos in a prompt of random-mm.", min=0)
    random_mm_num_mm_items_range_ratio: float = option(0.0, "How far their number varies.")
    random_mm_limit_mm_per_prompt: str = option('{"image": 255, "video": 1}', "Most of each kind.", metavar="JSON")
    random_mm_bucket_config: str = option(
        "{(256, 256, 1): 0.5, (720, 1280, 1): 0.5}",
        "Sizes (height, width, frames) and their probabilities; more than one frame is a video.",
    )
    oversample: bool = option(True, "Begin again where a data set has too few requests.")
    shuffle: bool = option(False, "Take those of a file in an order drawn by lot.")


@dataclass(frozen=True, kw_only=True)
class LoadOptions:
    """How to ask."""

    num_prompts: int = option(100, "Requests.", min=1)
    num_warmups: int = option(1, "How often the first request is sent before, uncounted.", min=0)
    max_concurrency: int | None = option(None, "Most requests under way.", min=1)
    request_rate: float = option(math.inf, "Requests a second; inf sends all at once.")
    burstiness: float = option(1.0, "1 is a Poisson process, less comes in bursts, more is even.")
    ramp_up_strategy: Literal["linear", "exponential"] | None = option(
        None, "Let the rate grow.", "--ramp-up-strategy", "--ramp-up"
    )
    ramp_up_start_rps: float | None = option(None, "Requests a second at the beginning.")
    ramp_up_end_rps: float | None = option(None, "Requests a second at the end.")
    seed: int = option(0, "Of all that is drawn.", min=0)


@dataclass(frozen=True, kw_only=True)
class RequestOptions:
    """What every request has."""

    ignore_eos: bool = option(False, "Let answers have their full length (random-mm does).", "--ignore-eos")
    temperature: float | None = option(None, "The server's own if not given.")
    top_p: float | None = option(None, "Likewise.")
    top_k: int | None = option(None, "Likewise.")
    extra_body: str | None = option(None, "Further fields of every request.", metavar="JSON")


def chosen_dataset(options: DatasetOptions) -> Dataset:
    """The data set.

    Raises:
        UserError: naming the option at fault.
    """
    from chiasm.bench.datasets.choose import Dataset

    return Dataset(
        name=options.dataset_name,
        path=options.dataset_path,
        hf_name=options.hf_name,
        split=options.hf_split,
        image_folder=options.image_folder,
        output_len=options.output_len,
        random=_random(options),
        oversample=options.oversample,
        shuffle=options.shuffle,
    )


def _random(options: DatasetOptions) -> RandomMedia:
    from chiasm.bench.datasets.random_media import RandomMedia, parse_buckets

    limits = _json_object("random_mm_limit_mm_per_prompt", options.random_mm_limit_mm_per_prompt)
    for kind, limit in limits.items():
        if kind not in {"image", "video"} or type(limit) is not int or limit < 0:
            refuse("random_mm_limit_mm_per_prompt", {kind: limit}, "numbers for image and video")
    return RandomMedia(
        input_len=options.input_len,
        output_len=options.output_len or RandomMedia.output_len,
        range_ratio=options.random_range_ratio,
        items=options.random_mm_base_items_per_request,
        items_range_ratio=options.random_mm_num_mm_items_range_ratio,
        limits=limits,
        buckets=parse_buckets(options.random_mm_bucket_config),
    )


def chosen_arrivals(options: LoadOptions) -> Arrivals:
    """When requests come.

    Raises:
        UserError: naming the option at fault.
    """
    from chiasm.bench.serve.arrivals import Arrivals, RampUp

    strategy, start, end = options.ramp_up_strategy, options.ramp_up_start_rps, options.ramp_up_end_rps
    if strategy is None:
        if start is not None or end is not None:
            raise UserError(
                "ramp_up_start_rps and ramp_up_end_rps need --ramp-up-strategy.", param="ramp_up_strategy"
            )
        return Arrivals(options.request_rate, options.burstiness)
    if start is None or end is None:
        raise UserError("A ramp-up needs --ramp-up-start-rps and --ramp-up-end-rps.", param="ramp_up_start_rps")
    return Arrivals(options.request_rate, options.burstiness, RampUp(strategy, start, end))


def request_fields(options: RequestOptions, dataset: DatasetOptions) -> dict[str, Any]:
    """Fields of every request's body.

    Raises:
        UserError: naming the option at fault.
    """
    chosen = {name: getattr(options, name) for name in ("temperature", "top_p", "top_k")}
    fields = {name: value for name, value in chosen.items() if value is not None}
    if options.ignore_eos or dataset.dataset_name == "random-mm":
        fields["ignore_eos"] = True
    return fields | (_json_object("extra_body", options.extra_body) if options.extra_body else {})


def _json_object(name: str, text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    return value if isinstance(value, dict) else refuse(name, text, "a JSON object")
