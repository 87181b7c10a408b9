"""Writes goldens.json: what Hugging Face's torchvision-backed processors make of the test pictures.

Run it where torch, torchvision, transformers and scikit-image are installed; it does not import chiasm:

    python tests/multimodal/make_goldens.py
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from pictures import CANVAS_CASES, CASES, FILES, GLM_CASES, make_picture, packaged_file
from PIL import Image
from transformers.models.glm4v.image_processing_glm4v import Glm4vImageProcessor
from transformers.models.mllama.image_processing_mllama import MllamaImageProcessor
from transformers.models.qwen2_vl.image_processing_qwen2_vl import Qwen2VLImageProcessor


def golden(picture, min_pixels=56 * 56, max_pixels=28 * 28 * 1280, patch_size=14, kind=Qwen2VLImageProcessor):
    processor = kind(
        size={"shortest_edge": min_pixels, "longest_edge": max_pixels},
        patch_size=patch_size,
        do_rescale=False,
        do_normalize=False,
    )
    output = processor(images=[picture], return_tensors="pt")
    rows = output["pixel_values"].contiguous().numpy()
    assert rows.dtype == "uint8"
    _, height, width = output["image_grid_thw"][0].tolist()
    return {"grid": [height, width], "sha256": hashlib.sha256(rows.tobytes()).hexdigest()}


def canvas_golden(picture, tile):
    size = {"height": tile, "width": tile}
    processor = MllamaImageProcessor(size=size, max_image_tiles=4, do_rescale=False, do_normalize=False)
    output = processor(images=[picture], return_tensors="pt")
    tiles = output["pixel_values"][0, 0, : output["num_tiles"][0][0]].byte().contiguous().numpy()
    return {
        "layout": output["aspect_ratio_ids"].item(),
        "num_tiles": len(tiles),
        "sha256": hashlib.sha256(tiles.tobytes()).hexdigest(),
    }


def main():
    goldens = {}
    for case in CASES:
        picture = Image.fromarray(make_picture(case.kind, case.height, case.width))
        goldens[case.name] = golden(picture, case.min_pixels, case.max_pixels, case.patch_size)
    for case in GLM_CASES:
        picture = Image.fromarray(make_picture(case.kind, case.height, case.width))
        limits = case.min_pixels, case.max_pixels
        goldens[f"glm4v {case.name}"] = golden(picture, *limits, kind=Glm4vImageProcessor)
    for kind, height, width, tile in CANVAS_CASES:
        picture = Image.fromarray(make_picture(kind, height, width))
        goldens[f"mllama {kind} {height}x{width} by {tile}"] = canvas_golden(picture, tile)
    for name in FILES:
        goldens[f"mllama {name}"] = canvas_golden(Image.open(packaged_file(name)).convert("RGB"), 448)
        goldens[name] = golden(Image.open(packaged_file(name)))
    path = Path(__file__).with_name("goldens.json")
    path.write_text(json.dumps(goldens, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
