"""Writes tile_goldens.json: what Hugging Face's torchvision-backed processor of Llama 4 makes of the test pictures.

Run it where torch, torchvision, transformers and scikit-image are installed, on a CPU with AVX2 and no AVX-512: on
others torchvision resizes bytes in floating point. It does not import chiasm:

    python tests/multimodal/make_tile_goldens.py
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import torch
from pictures import CANVAS_SIZES, CANVASES, FILES, TILE_CASES, make_picture, packaged_file
from PIL import Image
from transformers.models.llama4.image_processing_llama4 import Llama4ImageProcessor


def golden(picture, tile_size=336, max_tiles=16, fills_canvas=False):
    """(rows, columns) of the canvas, and the digest of its tiles and the overview."""
    processor = Llama4ImageProcessor(
        size={"height": tile_size, "width": tile_size},
        max_patches=max_tiles,
        resize_to_max_canvas=fills_canvas,
        do_rescale=False,
        do_normalize=False,
    )
    output = processor(images=[picture], return_tensors="pt")
    tiles = output["pixel_values"].contiguous().numpy()
    assert tiles.dtype == "uint8"
    return {
        "canvas": output["aspect_ratios"][0].tolist(),
        "sha256": hashlib.sha256(tiles.tobytes()).hexdigest(),
    }


def fitted(size, tile_size, max_tiles, fills_canvas):
    """[rows, columns, height, width]: the canvas of a white picture, and how much of it is not black."""
    processor = Llama4ImageProcessor(
        size={"height": tile_size, "width": tile_size},
        max_patches=max_tiles,
        resize_to_max_canvas=fills_canvas,
        do_rescale=False,
        do_normalize=False,
    )
    picture = Image.fromarray(np.full((*size, 3), 255, np.uint8))
    output = processor(images=[picture], return_tensors="pt")
    rows, columns = output["aspect_ratios"][0].tolist()
    tiles = output["pixel_values"][: rows * columns].view(rows, columns, 3, tile_size, tile_size)
    canvas = tiles.permute(2, 0, 3, 1, 4).reshape(3, rows * tile_size, columns * tile_size)
    return [rows, columns, *(int(torch.count_nonzero(line)) for line in (canvas[0, :, 0], canvas[0, 0]))]


def main():
    """Write the file."""
    goldens = {"pictures": {}, "files": {}, "fitted": {}}
    for case in TILE_CASES:
        picture = Image.fromarray(make_picture(case.kind, case.height, case.width))
        goldens["pictures"][case.name] = golden(picture, case.tile_size, case.max_tiles, case.fills_canvas)
    for name in FILES:
        goldens["files"][name] = golden(Image.open(packaged_file(name)))
    for canvas in CANVASES:
        goldens["fitted"][" ".join(map(str, canvas))] = [fitted(size, *canvas) for size in CANVAS_SIZES]
    path = Path(__file__).with_name("tile_goldens.json")
    text = json.dumps(goldens).replace('}, "', '},\n"').replace(']], "', ']],\n"')
    path.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
