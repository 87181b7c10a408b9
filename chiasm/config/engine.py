"""The engine's settings, under the names of its flags."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from chiasm.errors import UserError, refuse, require_known_keys

DTypeName = Literal["auto", "float32", "bfloat16", "float16"]
DeviceName = Literal["auto", "cpu", "cuda"]
EncoderMode = Literal["weights", "data", "auto"]
LoadFormat = Literal["auto", "safetensors", "dummy"]

_DEFAULT_LIMITS = {"image": 32, "video": 4}
_MAX_CACHE_GIB = 2**20
PROCESSOR_KEYS = ("min_pixels", "max_pixels")
VIDEO_IO_KEYS = ("fps", "num_frames")
_MAX_FPS = 120.0


class MediaConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Limits on media, and where it may come from.

    Attributes:
        limit_mm_per_prompt: most items of each modality in one prompt; those not named keep their default.
        mm_processor_kwargs: the server's own ``min_pixels``/``max_pixels``; requests can only narrow them.
        media_io_kwargs: how videos are sampled where a request doesn't say: ``{"video": {"fps": 2}}``, or
            ``{"video": {"num_frames": 32}}``, of which -1 takes all frames.
        allowed_local_media_path: folder below which ``file://`` URLs are read; None refuses them all.
        allowed_media_hosts: ``host:port`` of private or loopback hosts that may be fetched from all the same.
        allowed_media_domains: hosts of the public internet that media may come from; empty means all of them.
        fetch_timeout: seconds for the download of a picture, redirects included.
        video_fetch_timeout: seconds for the download of a video.
        max_media_bytes: largest encoded file or body of one item.
        max_download_bytes_in_flight: downloaded media of all requests together that are not decoded yet, in bytes.
        max_image_pixels: largest picture that is decoded, in pixels of its header.
        max_pixels_per_prompt: pixels of all pictures of a prompt together, as they come.
        max_video_pixels: largest frame of a video that is decoded.
        max_video_seconds: longest video, sampled or not.
        max_video_frames: most frames that are taken of one video.
        video_timeout: seconds for decoding one video.
        max_pixel_bytes_in_flight: patches held for queued and running requests, in bytes; further requests wait.
        mm_processor_cache_gb: patches kept for when the same media comes again, in GiB beside those in flight; 0
            keeps none. The default holds about 90 images of a million pixels, or 450 of 448x448.
        num_workers: preprocessing processes; 0 chooses by the number of cores.
    """

    limit_mm_per_prompt: dict[str, int] = {}
    mm_processor_kwargs: dict[str, int] = {}
    media_io_kwargs: dict[str, dict[str, float]] = {}
    allowed_local_media_path: str | None = None
    allowed_media_hosts: tuple[str, ...] = ()
    allowed_media_domains: tuple[str, ...] = ()
    fetch_timeout: float = 5.0
    video_fetch_timeout: float = 30.0
    max_media_bytes: int = 64 * 2**20
    max_download_bytes_in_flight: int = 2 * 2**30
    max_image_pixels: int = 100_000_000
    max_pixels_per_prompt: int = 1_000_000_000
    max_video_pixels: int = 4096 * 2304
    max_video_seconds: float = 3600.0
    max_video_frames: int = 768
    video_timeout: float = 60.0
    max_pixel_bytes_in_flight: int = 2 * 2**30
    mm_processor_cache_gb: float = 0.5
    num_workers: int = 0

    def __post_init__(self) -> None:
        """Check every limit."""
        for name in ("limit_mm_per_prompt", "mm_processor_kwargs", "media_io_kwargs"):
            msgspec.structs.force_setattr(self, name, without_nulls(getattr(self, name)))
        require_known_keys("limit_mm_per_prompt", self.limit_mm_per_prompt, _DEFAULT_LIMITS)
        msgspec.structs.force_setattr(self, "limit_mm_per_prompt", {**_DEFAULT_LIMITS, **self.limit_mm_per_prompt})
        for modality, limit in self.limit_mm_per_prompt.items():
            if limit < 0:
                refuse(f"limit_mm_per_prompt.{modality}", limit, "at least 0")
        check_processor_kwargs(self.mm_processor_kwargs)
        check_media_io_kwargs(self.media_io_kwargs, self.max_video_frames)
        for name in (
            "fetch_timeout", "video_fetch_timeout", "max_media_bytes", "max_image_pixels", "max_pixels_per_prompt",
            "max_video_pixels", "max_video_seconds", "max_video_frames", "video_timeout", "max_pixel_bytes_in_flight"
        ):  # fmt: skip
            if not getattr(self, name) > 0:
                refuse(name, getattr(self, name), "above 0")
        if self.max_download_bytes_in_flight < self.max_media_bytes:
            least = f"at least max_media_bytes ({self.max_media_bytes})"
            refuse("max_download_bytes_in_flight", self.max_download_bytes_in_flight, least)
        check_cache_size("mm_processor_cache_gb", self.mm_processor_cache_gb)
        if self.num_workers < 0:
            refuse("num_workers", self.num_workers, "at least 0")


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that decides what an engine computes and how.

    Attributes:
        model: folder of the checkpoint (already resolved from a hub name).
        dtype: of weights and activations in memory; "auto" picks by device.
        load_format: where the weights come from: "auto" and "safetensors" read the checkpoint's files; "dummy" reads
            none and makes random numbers, the same on every device and number of ranks. For measuring speed.
        device: "auto" takes CUDA where there is one.
        max_model_len: longest sequence in tokens; None takes the model's own, or less if the cache can't hold it.
        max_num_seqs: most sequences computed at a time.
        max_num_batched_tokens: most tokens computed in one step.
        max_num_batched_patches: most patches encoded in one step; one unit always fits.
        encoder_step_budget_ms: most milliseconds, by the cost model, that a step encodes while a sequence decodes;
            a unit that takes longer is divided over several. None takes four decode steps, as measured; infinity sets
            no bound.
        encoder_step_budget_patches: the same as a number of patches, in place of a time.
        block_size: tokens in a cache block.
        kv_cache_memory_bytes: memory of the KV cache on each rank; None chooses by what is free.
        gpu_memory_utilization: share of a GPU's memory to use, weights included.
        enforce_eager: on a GPU, launch every decode step and encoder pass anew, without CUDA graphs.
        encoder_graph_max_patches: on a GPU, the largest encoder pass that is recorded as CUDA graphs, in patches; 0
            records none. Larger ones keep a GPU busy however they are launched.
        mm_encoder_cache_gb: features kept on each rank for when the same frame comes again, in GiB; 0 keeps only what
            live sequences are about to read, for which there is always room. The default holds 65,536 tokens of 2,048
            columns in two bytes, some hundred pictures: little beside the weights of a model of that width. Where
            text attends to pictures from layers of its own, their keys and values get as much as half of the KV
            cache's memory if that is more, and the KV cache lends what is missing.
        enable_prefix_caching: keep the blocks of ended sequences for prompts that begin alike.
        tensor_parallel_size: ranks.
        mm_encoder_tp_mode: how the encoder uses the ranks.
        mm_encoder_min_units_per_rank: whole images or frames that every rank gets at least, as far as they go; above
            0 none is cut by rows.
        mm_encoder_trace_dir: folder to which every rank adds what its encoder did when; None writes nothing.
        step_timeout: seconds after which a step that has not ended counts as hung, and the engine ends; a step of a
            large model on a CPU can take minutes.
        seed: start of the seeds of requests that bring none.
        media: limits on media.
    """

    model: str
    dtype: DTypeName = "auto"
    load_format: LoadFormat = "auto"
    device: DeviceName = "auto"
    max_model_len: int | None = None
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 2048
    max_num_batched_patches: int = 16384
    encoder_step_budget_ms: float | None = None
    encoder_step_budget_patches: int | None = None
    block_size: int = 16
    kv_cache_memory_bytes: int | None = None
    gpu_memory_utilization: float = 0.9
    enforce_eager: bool = False
    encoder_graph_max_patches: int = 4096
    mm_encoder_cache_gb: float = 0.25
    enable_prefix_caching: bool = True
    tensor_parallel_size: int = 1
    mm_encoder_tp_mode: EncoderMode = "auto"
    mm_encoder_min_units_per_rank: int = 0
    mm_encoder_trace_dir: str | None = None
    step_timeout: float = 600.0
    seed: int = 0
    media: MediaConfig = msgspec.field(default_factory=MediaConfig)

    def __post_init__(self) -> None:
        """Check every range."""
        for name in (
            "max_num_seqs", "max_num_batched_tokens", "max_num_batched_patches", "block_size", "tensor_parallel_size"
        ):  # fmt: skip
            if getattr(self, name) < 1:
                refuse(name, getattr(self, name), "at least 1")
        if self.max_model_len is not None and self.max_model_len < 2:
            refuse("max_model_len", self.max_model_len, "at least 2: a prompt token and an answer token")
        if self.kv_cache_memory_bytes is not None and self.kv_cache_memory_bytes < 1:
            refuse("kv_cache_memory_bytes", self.kv_cache_memory_bytes, "at least 1")
        self._check_step_budget()
        check_cache_size("mm_encoder_cache_gb", self.mm_encoder_cache_gb)
        if self.encoder_graph_max_patches < 0:
            refuse("encoder_graph_max_patches", self.encoder_graph_max_patches, "at least 0")
        if self.mm_encoder_min_units_per_rank < 0:
            refuse("mm_encoder_min_units_per_rank", self.mm_encoder_min_units_per_rank, "at least 0")
        if self.mm_encoder_min_units_per_rank and self.mm_encoder_tp_mode == "weights":
            limit = "0 with mm_encoder_tp_mode=weights, which places no units"
            refuse("mm_encoder_min_units_per_rank", self.mm_encoder_min_units_per_rank, limit)
        if self.mm_encoder_trace_dir is not None and not Path(self.mm_encoder_trace_dir).is_dir():
            refuse("mm_encoder_trace_dir", self.mm_encoder_trace_dir, "a folder that exists")
        if not self.step_timeout > 0:
            refuse("step_timeout", self.step_timeout, "above 0")
        if not 0 <= self.seed < 2**63:
            refuse("seed", self.seed, "in [0, 2**63)")
        if not 0 < self.gpu_memory_utilization <= 1:
            refuse("gpu_memory_utilization", self.gpu_memory_utilization, "in (0, 1]")

    def _check_step_budget(self) -> None:
        budget_ms, patches = self.encoder_step_budget_ms, self.encoder_step_budget_patches
        if budget_ms is not None and not budget_ms > 0:
            refuse("encoder_step_budget_ms", budget_ms, "above 0")
        if patches is not None and patches < 1:
            refuse("encoder_step_budget_patches", patches, "at least 1")
        if budget_ms is not None and patches is not None:
            refuse("encoder_step_budget_patches", patches, "left out where encoder_step_budget_ms is set")


def check_cache_size(name: str, num_gib: float) -> None:
    """Refuse sizes that no machine has, infinity and NaN among them.

    Raises:
        UserError: naming the setting.
    """
    if not 0 <= num_gib <= _MAX_CACHE_GIB:
        refuse(name, num_gib, f"in [0, {_MAX_CACHE_GIB}] GiB")


def without_nulls(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings without those that are null or have nothing in them, which say as much as if they were left out."""
    inner = {key: without_nulls(value) if isinstance(value, Mapping) else value for key, value in settings.items()}
    return {key: value for key, value in inner.items() if value is not None and value != {}}


def check_processor_kwargs(kwargs: Mapping[str, Any], param: str = "mm_processor_kwargs") -> None:
    """Refuse unknown keys and values that are not positive whole numbers.

    Args:
        kwargs: ``min_pixels`` and ``max_pixels``.
        param: the field that holds them, for errors.

    Raises:
        UserError: naming the key.
    """
    require_known_keys(param, kwargs, PROCESSOR_KEYS)
    for key, value in kwargs.items():
        if type(value) is not int or value < 1:
            refuse(f"{param}.{key}", value, "a positive whole number of pixels")
    if kwargs.get("min_pixels", 1) > kwargs.get("max_pixels", 2**62):
        raise UserError(
            f"{param}.min_pixels={kwargs['min_pixels']} must not be above {param}.max_pixels={kwargs['max_pixels']}.",
            param=param,
        )


def check_media_io_kwargs(kwargs: Mapping[str, Any], max_video_frames: int) -> None:
    """Refuse unknown keys, and numbers of frames that nobody may have.

    Args:
        kwargs: by modality, of which only videos are sampled.
        max_video_frames: most frames of one video.

    Raises:
        UserError: naming the key.
    """
    require_known_keys("media_io_kwargs", kwargs, ("video",))
    video = kwargs.get("video", {})
    if not isinstance(video, Mapping):
        refuse("media_io_kwargs.video", video, "an object")
    check_video_sampling(video, max_video_frames)


def check_video_sampling(
    video: Mapping[str, Any], max_video_frames: int, param: str = "media_io_kwargs.video"
) -> None:
    """Refuse unknown keys, and numbers of frames that nobody may have.

    Args:
        video: ``fps`` or ``num_frames``.
        max_video_frames: most frames of one video.
        param: the field that holds them, for errors.

    Raises:
        UserError: naming the key.
    """
    require_known_keys(param, video, VIDEO_IO_KEYS)
    if len(video) > 1:
        raise UserError(f"{param} must have fps or num_frames, not both.", param=param)
    for key, value in video.items():
        if type(value) not in (int, float):
            refuse(f"{param}.{key}", value, "a number")
    fps, count = video.get("fps", 1), video.get("num_frames", -1)
    if not 0 < fps <= _MAX_FPS:
        refuse(f"{param}.fps", fps, f"above 0 and at most {_MAX_FPS:g}")
    if count != -1 and not (1 <= count <= max_video_frames and count == int(count)):
        limit = f"-1 for all frames, or a whole number in [1, {max_video_frames}] (max_video_frames)"
        refuse(f"{param}.num_frames", count, limit)
