"""Ask about a video: python examples/server/ask_video.py FILE_OR_URL ["QUESTION" [FRAMES_A_SECOND]]"""

from __future__ import annotations

import sys

from common import connect, media, show, text


def main(video: str, question: str = "What happens?", fps: str = "2") -> None:
    client, model = connect()
    stream = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": [media("video", video), text(question)]}],
        max_tokens=128,
        stream=True,
        extra_body={"media_io_kwargs": {"video": {"fps": float(fps)}}},
    )
    show(stream)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    main(*sys.argv[1:])
