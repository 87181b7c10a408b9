"""Ask a vision-language model about images or videos, without a server.

    python examples/vision_language.py
    python examples/vision_language.py --model-type qwen2_5_vl --modality video --num-prompts 4
    python examples/vision_language.py --model path/to/checkpoint --image one.png --question "What is this?"

Without a model it takes the built-in one, which reads charts; without --image or --video it asks about charts that
come with the package, or about clips that it draws, in which one bar of a chart grows.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from chiasm import LLM, SamplingParams

MODELS = {
    "chart-reader": None,
    "qwen2_vl": "Qwen/Qwen2-VL-2B-Instruct",
    "qwen2_5_vl": "Qwen/Qwen2.5-VL-3B-Instruct",
    "qwen3_vl": "Qwen/Qwen3-VL-4B-Instruct",
    "qwen3_vl_moe": "Qwen/Qwen3-VL-30B-A3B-Instruct",
    "glm4v": "zai-org/GLM-4.1V-9B-Thinking",
    "glm4v_moe": "zai-org/GLM-4.5V",
    "llama4": "meta-llama/Llama-4-Scout-17B-16E-Instruct",
    "mllama": "meta-llama/Llama-3.2-11B-Vision-Instruct",
}
WITHOUT_VIDEO = {"llama4", "mllama"}
FOLDER = Path(__file__).parents[1] / "chiasm" / "assets" / "chart-reader" / "examples"
CHARTS = [
    (FOLDER / "bars.png", "Which bar is the largest?"),
    (FOLDER / "line.png", "What is the value of Aug?"),
    (FOLDER / "pie.png", "What is the color of Iron?"),
    (FOLDER / "table.png", "How many rows are there?"),
]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Ask a vision-language model about images or videos.")
    parser.add_argument("-m", "--model-type", choices=MODELS, default="chart-reader", help="family")
    parser.add_argument("--model", help="folder or hub name, in place of the family's usual one")
    parser.add_argument("--modality", choices=("image", "video"), default="image")
    parser.add_argument("--num-prompts", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0, help="which picture is the first, what clips show")
    parser.add_argument("--image", type=Path, action="append", help="a picture; repeatable")
    parser.add_argument("--video", type=Path, action="append", help="a video; repeatable")
    parser.add_argument("--question", help="about each")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("-tp", "--tensor-parallel-size", type=int, default=1, help="ranks")
    parser.add_argument("--mm-encoder-tp-mode", choices=("weights", "data", "auto"), default="auto")
    options = parser.parse_args()
    if options.modality == "video" and options.model_type in WITHOUT_VIDEO:
        parser.error(f"{options.model_type} takes images only")
    if (options.video and options.modality == "image") or (options.image and options.modality == "video"):
        parser.error(f"--modality is {options.modality}")
    return options


def images(options: argparse.Namespace) -> Iterator[tuple[Image.Image, str]]:
    """Pictures and questions without end, from a place that the seed says."""
    asked = [(file, "What is in this picture?") for file in options.image] if options.image else CHARTS
    for number in count(options.seed):
        file, question = asked[number % len(asked)]
        yield Image.open(file), question


def videos(options: argparse.Namespace) -> Iterator[tuple[bytes | npt.NDArray[np.uint8], str]]:
    """Files, or clips that are drawn, and questions without end."""
    rng = Random(options.seed)
    for number in count():
        if options.video:
            yield options.video[number % len(options.video)].read_bytes(), "What happens?"
        else:
            yield draw_clip(rng), "Which bar grows?"


def draw_clip(rng: Random, num_frames: int = 4, side: int = 168) -> npt.NDArray[np.uint8]:
    """Bars of which one grows, uint8 [frames, side, side, 3]."""
    heights, grows = [rng.randint(20, 60) for _ in range(4)], rng.randrange(4)
    frames = []
    for number in range(num_frames):
        frame = Image.new("RGB", (side, side), "white")
        draw = ImageDraw.Draw(frame)
        for index, height in enumerate(heights):
            top = side - 24 - height - (20 * number if index == grows else 0)
            draw.rectangle((12 + 40 * index, top, 36 + 40 * index, side - 24), fill="steelblue")
            draw.text((20 + 40 * index, side - 18), "ABCD"[index], fill="black")
        frames.append(np.asarray(frame))
    return np.stack(frames)


def conversations(options: argparse.Namespace) -> list[list[dict[str, Any]]]:
    """One message each: an image or a video, and a question about it."""
    asked = images(options) if options.modality == "image" else videos(options)
    made = []
    for media, question in islice(asked, options.num_prompts):
        part = {"type": options.modality, options.modality: media}
        text = {"type": "text", "text": options.question or question}
        made.append([{"role": "user", "content": [part, text]}])
    return made


def main() -> None:
    options = parse_arguments()
    llm = LLM(
        options.model or MODELS[options.model_type],
        seed=options.seed,
        tensor_parallel_size=options.tensor_parallel_size,
        mm_encoder_tp_mode=options.mm_encoder_tp_mode,
    )
    sampling = SamplingParams(temperature=0, max_tokens=options.max_tokens)
    for output in llm.chat(conversations(options), sampling):
        print("-" * 50)
        print(output.outputs[0].text)


if __name__ == "__main__":
    main()
