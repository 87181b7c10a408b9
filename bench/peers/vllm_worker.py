"""vLLM's offline engine: python -m bench.peers.vllm_worker FOLDER SETTINGS, the latter as JSON."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from bench.peers.answering import answer_calls, claim_output
from bench.peers.requests import Request, clip, conversation, picture


class Peer:
    """The engine."""

    def __init__(self, folder: str, settings: dict[str, Any]) -> None:
        import vllm  # type: ignore[import-not-found]  # it is in the peer's environment only

        self._sampling = vllm.SamplingParams
        self._llm = vllm.LLM(model=folder, **settings)

    def generate(self, requests: list[Request], max_tokens: int) -> dict[str, Any]:
        """Answer pictures and clips, greedily; the time includes the processor."""
        prompts = [self._prompt(request) for request in requests]
        sampling = self._sampling(temperature=0, max_tokens=max_tokens, ignore_eos=True)
        start = time.perf_counter()
        outputs = self._llm.generate(prompts, sampling, use_tqdm=False)
        seconds = time.perf_counter() - start
        return {
            "seconds": seconds,
            "num_prompt_tokens": sum(len(output.prompt_token_ids) for output in outputs),
            "token_ids": [list(output.outputs[0].token_ids) for output in outputs],
        }

    def _prompt(self, request: Request) -> dict[str, Any]:
        kind = "video" if request["frames"] else "image"
        text = self._llm.get_tokenizer().apply_chat_template(
            conversation(kind), tokenize=False, add_generation_prompt=True
        )
        media = clip(request) if request["frames"] else picture(request)
        return {"prompt": text, "multi_modal_data": {kind: media}}


def main() -> None:
    """Load, then answer."""
    results = claim_output()
    folder, settings = sys.argv[1:]
    peer = Peer(folder, json.loads(settings))
    answer_calls(results, {"generate": peer.generate})


if __name__ == "__main__":
    main()
