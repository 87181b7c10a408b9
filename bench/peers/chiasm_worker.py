"""This checkout's offline engine: python -m bench.peers.chiasm_worker FOLDER SETTINGS, the latter as JSON."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from bench.peers.answering import answer_calls, claim_output
from bench.peers.requests import QUESTION, Request, clip, picture
from chiasm.llm.offline import LLM
from chiasm.schema.sampling import SamplingParams


def generate(llm: LLM, requests: list[Request], max_tokens: int) -> dict[str, Any]:
    """Answer pictures and clips, greedily; the time includes all preprocessing."""
    conversations = [[{"role": "user", "content": [_part(each), _QUESTION]}] for each in requests]
    sampling = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    start = time.perf_counter()
    outputs = llm.chat(conversations, sampling, use_tqdm=False)
    seconds = time.perf_counter() - start
    return {
        "seconds": seconds,
        "num_prompt_tokens": sum(len(output.prompt_token_ids) for output in outputs),
        "token_ids": [output.outputs[0].token_ids for output in outputs],
    }


_QUESTION = {"type": "text", "text": QUESTION}


def _part(request: Request) -> dict[str, Any]:
    if not request["frames"]:
        return {"type": "image", "image": picture(request)}
    frames, metadata = clip(request)
    return {"type": "video", "video": (frames, {"fps": metadata["fps"]})}


def main() -> None:
    """Load, then answer."""
    results = claim_output()
    folder, settings = sys.argv[1:]
    with LLM(folder, **json.loads(settings)) as llm:

        def answer(requests: list[Request], max_tokens: int) -> dict[str, Any]:
            return generate(llm, requests, max_tokens)

        answer_calls(results, {"generate": answer})


if __name__ == "__main__":
    main()
