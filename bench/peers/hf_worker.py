"""Hugging Face's model of a checkpoint, float32, SDPA: python -m bench.peers.hf_worker FOLDER THREADS"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import torch
from transformers import AutoModelForImageTextToText, AutoProcessor

from bench.peers.answering import answer_calls, claim_output
from bench.peers.requests import Request, conversation, picture


class Peer:
    """The model and its processor."""

    def __init__(self, folder: str) -> None:
        self._processor: Any = AutoProcessor.from_pretrained(folder)  # type: ignore[no-untyped-call]
        model: Any = AutoModelForImageTextToText.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="sdpa"
        )
        self._model = model.eval()
        self._model.generation_config.eos_token_id = None  # answers have the length that is asked for
        self._prompt = self._processor.apply_chat_template(
            conversation("image"), tokenize=False, add_generation_prompt=True
        )

    def tower(self, requests: list[Request]) -> dict[str, Any]:
        """Encode the pictures in one batch: seconds of the tower alone, and the grid of each in patches."""
        inputs = self._inputs(requests)
        pixels, grids = inputs["pixel_values"], inputs["image_grid_thw"]
        with torch.inference_mode():
            start = time.perf_counter()
            self._model.model.visual(pixels, grid_thw=grids)
            seconds = time.perf_counter() - start
        return {"seconds": seconds, "grids": grids.tolist()}

    def generate(self, requests: list[Request], max_tokens: int) -> dict[str, Any]:
        """Answer pictures as one padded batch, greedily; the time includes the processor."""
        pictures = [picture(request) for request in requests]
        start = time.perf_counter()
        inputs = self._processor(
            text=[self._prompt] * len(pictures),
            images=pictures,
            return_tensors="pt",
            padding=True,
            padding_side="left",
        )
        with torch.inference_mode():
            tokens = self._model.generate(**inputs, max_new_tokens=max_tokens, do_sample=False)
        seconds = time.perf_counter() - start
        return {
            "seconds": seconds,
            "num_prompt_tokens": int(inputs["attention_mask"].sum()),
            "token_ids": tokens[:, inputs["input_ids"].shape[1] :].tolist(),
        }

    def _inputs(self, requests: list[Request]) -> Any:
        pictures = [picture(request) for request in requests]
        texts = [self._prompt] * len(pictures)
        return self._processor(text=texts, images=pictures, return_tensors="pt", padding=True)


def main() -> None:
    """Load, then answer."""
    results = claim_output()
    os.environ["HF_HUB_OFFLINE"] = "1"
    folder, threads = sys.argv[1:]
    torch.set_num_threads(int(threads))
    peer = Peer(folder)
    answer_calls(results, {"tower": peer.tower, "generate": peer.generate})


if __name__ == "__main__":
    main()
