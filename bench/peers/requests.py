"""What is asked of every engine: prompts with one picture or one clip, made alike on both sides from a few numbers.

Read by this project's Python and by the peers', so it needs numpy and Pillow alone.
"""

from __future__ import annotations

from typing import Any, TypedDict

import numpy as np
from PIL import Image

QUESTION = "Describe what you see here."
MIX = ((448, 448), (896, 896), (640, 480), (480, 640), (1024, 768), (224, 224), (336, 672), (800, 600))
"""Eight sizes, as (width, height)."""

_BLOCKS = 8
_FPS = 2.0


class Request(TypedDict):
    """A prompt, as it travels to a worker.

    Attributes:
        width: of the picture or of each frame.
        height: likewise.
        frames: 0 for a picture, else of a clip.
        seed: another one gives another picture, so that no cache can know it.
    """

    width: int
    height: int
    frames: int
    seed: int


def image_request(width: int, height: int, seed: int) -> Request:
    """A question about a picture."""
    return Request(width=width, height=height, frames=0, seed=seed)


def video_request(width: int, height: int, frames: int, seed: int) -> Request:
    """A question about a clip of two frames a second."""
    return Request(width=width, height=height, frames=frames, seed=seed)


def pixels(width: int, height: int, seed: int) -> np.ndarray[Any, Any]:
    """Coloured blocks, uint8 [height, width, 3]; the same whatever version of Pillow is there."""
    blocks = np.random.default_rng(seed).integers(0, 256, (_BLOCKS, _BLOCKS, 3), dtype=np.uint8)
    rows = np.arange(height) * _BLOCKS // height
    columns = np.arange(width) * _BLOCKS // width
    return blocks[rows][:, columns]


def picture(request: Request) -> Image.Image:
    """The picture of a request."""
    return Image.fromarray(pixels(request["width"], request["height"], request["seed"]))


def clip(request: Request) -> tuple[np.ndarray[Any, Any], dict[str, Any]]:
    """The frames of a request [frames, height, width, 3], and that all of them are to be used."""
    count = request["frames"]
    frames = [pixels(request["width"], request["height"], request["seed"] + index) for index in range(count)]
    metadata = {
        "fps": _FPS,
        "total_num_frames": count,
        "frames_indices": list(range(count)),
        "duration": count / _FPS,
        "video_backend": "none",
        "do_sample_frames": False,
    }
    return np.stack(frames), metadata


def conversation(kind: str) -> list[dict[str, Any]]:
    """The question after an "image" or a "video", for a chat template."""
    return [{"role": "user", "content": [{"type": kind}, {"type": "text", "text": QUESTION}]}]
