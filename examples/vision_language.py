"""Ask a vision-language model about images or videos, without a server.

    python examples/vision_language.py
    python examples/vision_language.py --model-type qwen2_5_vl --modality video --num-prompts 4
    python examples/vision_language.py --model path/to/checkpoint --image one.png --question "What is this?"

Without a model it takes the built-in one, which reads charts; without --image or --video it asks about a chart that
comes with the package, or about a clip that it draws, in which one bar of a chart grows.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
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
CHARTS = Path(__file__).parents[1] / "chiasm" / "assets" / "chart-reader" / "examples"
QUESTIONS = {"image": "Which bar is the largest?", "video": "Which bar grows?"}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Ask a vision-language model about images or videos.")
    parser.add_argument("-m", "--model-type", choices=MODELS, default="chart-reader", help="family")
    parser.add_argument("--model", help="folder or hub name, in place of the family's usual one")
    parser.add_argument("--modality", choices=("image", "video"), default="image")
    parser.add_argument("--num-prompts", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0, help="of the pictures and of sampling")
    parser.add_argument("--image", type=Path, action="append", help="a picture; repeatable")
    parser.add_argument("--video", type=Path, action="append", help="a video; repeatable")
    parser.add_argument("--question", help="about each")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("-tp", "--tensor-parallel-size", type=int, default=1, help="ranks")
    parser.add_argument("--mm-encoder-tp-mode", choices=("weights", "data", "auto"), default="auto")
    options = parser.parse_args()
    if options.modality == "video" and options.model_type in WITHOUT_VIDEO:
        parser.error(f"{options.model_type} takes images only")
    return options


def images(options: argparse.Namespace) -> Iterator[Image.Image]:
    """Pictures without end, from a place that the seed says."""
    files = options.image or [CHARTS / "bars.png"]
    while True:
        yield from (
            Image.open(file) for file in files[options.seed % len(files) :] + files[: options.seed % len(files)]
        )


def videos(options: argparse.Namespace) -> Iterator[bytes | npt.NDArray[np.uint8]]:
    """Files, or clips that are drawn, without end."""
    rng = Random(options.seed)
    while True:
        if options.video:
            yield from (file.read_bytes() for file in options.video)
        else:
            yield draw_clip(rng)


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
    media = images(options) if options.modality == "image" else videos(options)
    question = {"type": "text", "text": options.question or QUESTIONS[options.modality]}
    made = []
    for _ in range(options.num_prompts):
        part = {"type": options.modality, options.modality: next(media)}
        made.append([{"role": "user", "content": [part, question]}])
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
