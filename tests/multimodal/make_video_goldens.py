"""Writes video_goldens.json: frames and pixels that Hugging Face's torchvision-backed video processors take.

Run it where torch, torchvision, transformers and av are installed; it does not import chiasm:

    python tests/multimodal/make_video_goldens.py
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
from transformers.models.glm4v.video_processing_glm4v import Glm4vVideoProcessor
from transformers.models.glm46v.video_processing_glm46v import Glm46VVideoProcessor
from transformers.models.qwen2_vl.video_processing_qwen2_vl import Qwen2VLVideoProcessor
from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor
from transformers.video_utils import VideoMetadata
from videos import DURATIONS, SAMPLINGS, SIZE_CASES, make_frames

FAMILIES = {"steps": Qwen2VLVideoProcessor, "ends": Qwen3VLVideoProcessor, "seconds": Glm4vVideoProcessor}


def pixels(case, processor, **settings):
    """Grid and digest of what a processor makes of a case's frames."""
    size = {"shortest_edge": case.min_pixels, "longest_edge": case.max_pixels}
    frames = make_frames(case.count, case.height, case.width)
    output = processor(size=size, do_rescale=False, do_normalize=False, **settings)(
        videos=[frames], do_sample_frames=False, return_tensors="pt"
    )
    rows = output["pixel_values_videos"].contiguous().numpy()
    assert rows.dtype == "uint8"
    return {
        "thw": output["video_grid_thw"][0].tolist(),
        "sha256": hashlib.sha256(rows.tobytes()).hexdigest(),
    }


def indices(sampling, total, fps, asked):
    """Which frames a family's processor takes; None where it takes none of its own accord."""
    if sampling == "seconds" and "num_frames" in asked:
        return None
    metadata = VideoMetadata(total_num_frames=total, fps=fps, duration=total / fps)
    asked = {**asked, "fps": None} if "num_frames" in asked and sampling == "ends" else asked
    processor = FAMILIES[sampling]()
    if "num_frames" in asked:
        processor.fps = None
    return np.asarray(processor.sample_frames(metadata, **asked)).tolist()


def _by_duration(total, fps):
    """How many frames, and which by their digest."""
    metadata = VideoMetadata(total_num_frames=total, fps=fps, duration=total / fps)
    taken = Glm46VVideoProcessor().sample_frames(metadata).tolist()
    return [len(taken), hashlib.sha256(repr(taken).encode()).hexdigest()[:16]]


def main():
    """Write the file."""
    goldens = {"frame": {}, "clip": {}, "indices": {}}
    for case in SIZE_CASES:
        capped = {"cap_pixels_per_frame": True, "max_video_tokens": case.max_video_tokens}
        goldens["frame"][case.name] = pixels(case, Qwen2VLVideoProcessor, **capped)
        if case.count > 1:  # a single frame is an error there
            goldens["clip"][case.name] = pixels(case, Qwen3VLVideoProcessor, patch_size=14)
    for sampling in FAMILIES:
        taken = [indices(sampling, *case) for case in SAMPLINGS]
        # Long lists by their digest.
        goldens["indices"][sampling] = [
            hashlib.sha256(repr(own).encode()).hexdigest() if own and len(own) > 40 else own for own in taken
        ]
    goldens["indices"]["duration"] = [_by_duration(*case) for case in DURATIONS]
    path = Path(__file__).with_name("video_goldens.json")
    text = json.dumps(goldens).replace('}, "', '},\n"').replace("], [", "],\n[")
    path.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
