"""The options of the commands. Those that set a field of a configuration have its name and its default."""

# ruff: noqa: RUF009 - option() is dataclasses.field() with a help text

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from chiasm.cli.config_file import use_config_file
from chiasm.cli.option_groups import option
from chiasm.config.engine import DeviceName, DTypeName, EncoderMode, EngineConfig, LoadFormat, MediaConfig
from chiasm.config.server import ReasoningParser, ServerConfig, ToolCallParser

API_KEY_VARIABLE = "CHIASM_API_KEY"

_E = EngineConfig(model="")
_M = MediaConfig()
_S = ServerConfig(model="any")

Checkpoint = Annotated[
    str | None,
    typer.Argument(metavar="MODEL", help="Folder or hub name of a checkpoint; the built-in one if not given."),
]
FiguresFile = Annotated[
    Path | None, typer.Option("--json", "--output-json", metavar="FILE", help="Also write the figures here.")
]
ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", callback=use_config_file, is_eager=True, help="YAML file with options by name."),
]


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """How the model is loaded and run; see ``EngineConfig`` and ``MediaConfig``."""

    dtype: DTypeName = option(_E.dtype, "Type of weights and activations; auto picks by device.")
    load_format: LoadFormat = option(
        _E.load_format, "Where weights come from: the checkpoint's safetensors files, or dummy: random numbers."
    )
    device: DeviceName = option(_E.device, "Where to compute; auto takes CUDA where there is one.")
    max_model_len: int | None = option(None, "Longest prompt and answer together, in tokens.")
    seed: int = option(_E.seed, "Makes sampling repeatable for requests that bring no seed.")
    revision: str | None = option(None, "Branch, tag or commit on the hub.")
    chat_template: str | None = option(None, "Jinja template for conversations, or a file with one.")

    max_num_seqs: int = option(_E.max_num_seqs, "Most sequences computed at a time.")
    max_num_batched_tokens: int = option(_E.max_num_batched_tokens, "Most tokens computed in one step.")
    max_num_batched_patches: int = option(_E.max_num_batched_patches, "Most image patches encoded in one step.")
    encoder_step_budget_ms: float | None = option(
        None,
        "Most milliseconds that a step encodes while others decode: four decode steps by default, inf for no bound.",
    )
    encoder_step_budget_patches: int | None = option(None, "The same in image patches, in place of a time.")
    block_size: int = option(_E.block_size, "Tokens in a block of the KV cache.")
    kv_cache_memory_bytes: int | None = option(
        None, "Size of the KV cache on each rank; by what is free if not given."
    )
    gpu_memory_utilization: float = option(_E.gpu_memory_utilization, "Share of a GPU's memory to use.")
    enforce_eager: bool = option(_E.enforce_eager, "On a GPU, launch everything anew, without CUDA graphs.")
    encoder_graph_max_patches: int = option(
        _E.encoder_graph_max_patches, "On a GPU, the largest encoder pass recorded as CUDA graphs; 0 records none."
    )
    mm_encoder_cache_gb: float = option(
        _E.mm_encoder_cache_gb, "GiB of image features kept on each rank; 0 keeps what is about to be read."
    )
    enable_prefix_caching: bool = option(
        _E.enable_prefix_caching, "Keep the KV cache of ended requests for prompts that begin alike."
    )

    tensor_parallel_size: int = option(
        _E.tensor_parallel_size, "Ranks that share the language model.", "--tensor-parallel-size", "-tp"
    )
    mm_encoder_tp_mode: EncoderMode = option(
        _E.mm_encoder_tp_mode,
        "How the ranks share the vision encoder: weights cuts its weights, data spreads whole images and frames, "
        "auto also cuts them by rows where that pays.",
    )

    mm_encoder_min_units_per_rank: int = option(
        _E.mm_encoder_min_units_per_rank,
        "Whole images that every rank encodes at least; above 0 none is cut by rows.",
    )
    mm_encoder_trace_dir: str | None = option(
        None, "Folder to which every rank adds what its vision encoder did when, as lines of JSON."
    )
    step_timeout: float = option(
        _E.step_timeout, "Seconds after which a step that has not ended counts as hung, and the engine ends."
    )

    limit_mm_per_prompt: str | None = option(
        None,
        'Most items in a prompt: \'{"image": 4, "video": 1}\'. Also --limit-mm-per-prompt.image 4.',
        metavar="JSON",
    )
    mm_processor_kwargs: str | None = option(
        None, 'Sizes of images: \'{"min_pixels": 3136, "max_pixels": 1003520}\'. Also by dotted keys.', metavar="JSON"
    )
    media_io_kwargs: str | None = option(
        None,
        'How videos are sampled: \'{"video": {"fps": 2}}\' or \'{"video": {"num_frames": 32}}\', of which -1 is all.',
        metavar="JSON",
    )
    allowed_local_media_path: str | None = option(None, "Folder whose files file:// URLs may name.")
    allowed_media_hosts: list[str] | None = option(
        None, "Private host that media may come from all the same; repeatable.", metavar="HOST:PORT"
    )
    allowed_media_domains: list[str] | None = option(
        None, "Public host that media may come from, and no other unless it is named too; repeatable.", metavar="HOST"
    )
    fetch_timeout: float = option(_M.fetch_timeout, "Seconds for the download of an image.")
    video_fetch_timeout: float = option(_M.video_fetch_timeout, "Seconds for the download of a video.")
    max_media_bytes: int = option(_M.max_media_bytes, "Largest file of an image or a video.")
    max_download_bytes_in_flight: int = option(
        _M.max_download_bytes_in_flight, "Downloaded media of all requests that are not decoded yet; more get a 503."
    )
    max_image_pixels: int = option(_M.max_image_pixels, "Largest picture that is decoded.")
    max_pixels_per_prompt: int = option(_M.max_pixels_per_prompt, "Pixels of all pictures of a prompt, as they come.")
    max_video_pixels: int = option(_M.max_video_pixels, "Largest frame of a video that is decoded.")
    max_video_seconds: float = option(_M.max_video_seconds, "Longest video.")
    max_video_frames: int = option(_M.max_video_frames, "Most frames that are taken of a video.")
    video_timeout: float = option(_M.video_timeout, "Seconds for decoding a video.")
    max_pixel_bytes_in_flight: int = option(
        _M.max_pixel_bytes_in_flight, "Pixels held for unfinished requests; further requests wait."
    )
    mm_processor_cache_gb: float = option(
        _M.mm_processor_cache_gb, "GiB of processed images and videos kept for when they come again; 0 keeps none."
    )
    num_workers: int = option(_M.num_workers, "Processes that decode media; 0 picks by cores.")


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """Where the server listens and how much it takes on; see ``ServerConfig``."""

    host: str = option(_S.host, "Address to listen on; 0.0.0.0 for all of them.")
    port: int = option(_S.port, "Port to listen on; 0 for any free one.")
    served_model_name: list[str] | None = option(None, "Name of the model in requests; repeatable.", metavar="NAME")
    api_key: list[str] | None = option(
        None, "Key that requests must bring; repeatable.", metavar="KEY", envvar=API_KEY_VARIABLE
    )
    shutdown_timeout: float = option(_S.shutdown_timeout, "Seconds that running requests get after SIGTERM.")
    max_queue: int = option(
        _S.max_queue,
        "Most answers under way or waiting; further requests get a 503.",
        "--max-queue",
        "--max-num-queued-reqs",
    )
    max_body_bytes: int = option(_S.max_body_bytes, "Largest body of a request.")
    max_body_bytes_in_flight: int = option(
        _S.max_body_bytes_in_flight, "Bodies of all unanswered requests together; further requests get a 503."
    )
    request_timeout: float | None = option(None, "Seconds for a whole request; none by default.")
    access_log: bool = option(_S.access_log, "Log a line per request.")
    enable_auto_tool_choice: bool = option(
        _S.enable_auto_tool_choice, "Let the model decide whether it calls tools; needs --tool-call-parser."
    )
    tool_call_parser: ToolCallParser | None = option(None, "How the model writes calls of tools.")
    reasoning_parser: ReasoningParser | None = option(None, "How the model marks its reasoning.")
    trust_request_chat_template: bool = option(
        _S.trust_request_chat_template, "Let requests bring chat templates of their own, which are programs."
    )
    max_stored_responses: int = option(
        _S.max_stored_responses,
        "Most answers of /v1/responses kept for clients that come back to them; 0 keeps none.",
    )
    max_stored_response_bytes: int = option(
        _S.max_stored_response_bytes, "Bytes of these, with the conversations that led to them."
    )
    stored_response_seconds: float = option(_S.stored_response_seconds, "Seconds that each of these is kept.")
    ui: bool = option(_S.ui, "Serve a page at / to try the model and see the ranks work.")
    otlp_traces_endpoint: str | None = option(
        None, "Where OpenTelemetry traces go, over HTTP; needs chiasm[otel].", metavar="URL"
    )
    log_level: Literal["debug", "info", "warning", "error"] = option("info", "Least severe log line to show.")


@dataclass(frozen=True, kw_only=True)
class SamplingOptions:
    """How an answer is decoded; what is not given follows the checkpoint's recommendation."""

    max_tokens: int | None = option(None, "Longest answer in tokens; up to the context's end if not given.")
    temperature: float | None = option(None, "0 takes the likeliest token each time.")
    top_p: float | None = option(None, "Keep the likeliest tokens up to this probability.")
    top_k: int | None = option(None, "Keep this many of the likeliest tokens.")
    min_p: float | None = option(None, "Drop tokens below this share of the likeliest one.")
    repetition_penalty: float | None = option(None, "Above 1 discourages repetition.")
    stop: list[str] | None = option(None, "Text that ends the answer; repeatable.", metavar="TEXT")
