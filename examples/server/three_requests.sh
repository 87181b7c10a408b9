#!/usr/bin/env bash
# The three requests with which data parallelism of GLM-4.5V's encoder was shown: a sum in words, a picture by its URL,
# a video by its URL. Start the server first, for instance:
#
#     chiasm serve zai-org/GLM-4.5V -tp 4 --mm-encoder-tp-mode data --reasoning-parser glm45
#
# Media come from public addresses only; another server is admitted by name: --allowed-media-hosts HOST:PORT.
set -euo pipefail

URL=${CHIASM_URL:-http://127.0.0.1:8000}
PICTURE=${PICTURE_URL:-https://upload.wikimedia.org/wikipedia/commons/thumb/d/dd/Gfp-wisconsin-madison-the-nature-boardwalk.jpg/960px-Gfp-wisconsin-madison-the-nature-boardwalk.jpg}
VIDEO=${VIDEO_URL:-https://cdn.bigmodel.cn/agent-demos/lark/113123.mov}

curl -sS "$URL/v1/chat/completions" -H 'Content-Type: application/json' -d '{
  "messages": [{"role": "user", "content": "What is the result of 111 * 5?"}],
  "max_tokens": 256}'
echo
curl -sS "$URL/v1/chat/completions" -H 'Content-Type: application/json' -d '{
  "messages": [{"role": "user", "content": [
    {"type": "image_url", "image_url": {"url": "'"$PICTURE"'"}},
    {"type": "text", "text": "What is in this picture?"}]}],
  "max_tokens": 256}'
echo
curl -sS "$URL/v1/chat/completions" -H 'Content-Type: application/json' -d '{
  "messages": [{"role": "user", "content": [
    {"type": "video_url", "video_url": {"url": "'"$VIDEO"'"}},
    {"type": "text", "text": "What happens in this video?"}]}],
  "max_tokens": 256}'
echo
