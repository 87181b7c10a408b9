"""Options become configurations; every setting has an option."""

from __future__ import annotations

from dataclasses import fields

import pytest

from chiasm.cli.options import EngineOptions, SamplingOptions, ServerOptions
from chiasm.cli.settings import engine_config, sampling_params, server_config
from chiasm.config.engine import EngineConfig, MediaConfig
from chiasm.config.server import ServerConfig
from chiasm.errors import UserError
from chiasm.schema.sampling import SamplingParams


def test_without_options_everything_is_as_the_configurations_have_it() -> None:
    assert engine_config("folder", EngineOptions()) == EngineConfig(model="folder")
    assert server_config("org/name", "folder", ServerOptions()) == ServerConfig(model="org/name")
    assert sampling_params(SamplingOptions(), {}) == SamplingParams(max_tokens=None)


def test_every_setting_has_an_option() -> None:
    engine = {f.name for f in fields(EngineOptions)}
    assert engine == {
        *EngineConfig.__struct_fields__,
        *MediaConfig.__struct_fields__,
        "revision",
        "chat_template",
    } - {
        "model",
        "media",
    }
    server = {f.name for f in fields(ServerOptions)} - {"served_model_name", "api_key", "log_level"}
    assert server == {*ServerConfig.__struct_fields__} - {"model", "served_model_names", "api_keys"}


def test_an_engine() -> None:
    options = EngineOptions(
        dtype="bfloat16",
        tensor_parallel_size=2,
        enable_prefix_caching=False,
        limit_mm_per_prompt='{"image": 4}',
        mm_processor_kwargs='{"max_pixels": 1000}',
        allowed_media_hosts=["127.0.0.1:80"],
        fetch_timeout=1.5,
    )
    assert engine_config("m", options) == EngineConfig(
        model="m",
        dtype="bfloat16",
        tensor_parallel_size=2,
        enable_prefix_caching=False,
        media=MediaConfig(
            limit_mm_per_prompt={"image": 4},
            mm_processor_kwargs={"max_pixels": 1000},
            allowed_media_hosts=("127.0.0.1:80",),
            fetch_timeout=1.5,
        ),
    )


def test_nulls_in_json_are_left_out() -> None:
    options = EngineOptions(
        limit_mm_per_prompt='{"image": null, "video": 2}',
        mm_processor_kwargs='{"max_pixels": null}',
        media_io_kwargs='{"video": {"fps": null, "num_frames": 8}, "image": null}',
    )
    media = MediaConfig(limit_mm_per_prompt={"video": 2}, media_io_kwargs={"video": {"num_frames": 8}})
    assert engine_config("m", options) == EngineConfig(model="m", media=media)


def test_a_server() -> None:
    options = ServerOptions(served_model_name=["a", "b"], api_key=["k"], port=0, max_queue=7)
    expected = ServerConfig(model="org/name", served_model_names=("a", "b"), api_keys=("k",), port=0, max_queue=7)
    assert server_config("org/name", "folder", options) == expected


def test_the_built_in_model_has_a_name_of_its_own() -> None:
    assert server_config(None, "assets/chart-reader", ServerOptions()).names == ("chart-reader",)
    assert server_config(None, "assets/chart-reader", ServerOptions(served_model_name=["x"])).names == ("x",)


def test_decoding_follows_the_checkpoint_where_nothing_is_given() -> None:
    options = SamplingOptions(temperature=0.0, stop=["\n"])
    expected = SamplingParams(temperature=0.0, top_k=20, stop=("\n",), max_tokens=None)
    assert sampling_params(options, {"temperature": 0.7, "top_k": 20}) == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (EngineOptions(limit_mm_per_prompt="{"), "limit_mm_per_prompt is not valid JSON: "),
        (EngineOptions(limit_mm_per_prompt="[4]"), "limit_mm_per_prompt must be a JSON object"),
        (EngineOptions(limit_mm_per_prompt='{"image": "x"}'), "limit_mm_per_prompt.image must be a whole number"),
        (EngineOptions(limit_mm_per_prompt='{"smell": 1}'), "limit_mm_per_prompt has an unknown key 'smell'"),
        (EngineOptions(mm_processor_kwargs='{"max_pixels": true}'), "mm_processor_kwargs.max_pixels must be a whole"),
        (EngineOptions(block_size=0), "block_size must be at least 1, got 0."),
    ],
)
def test_mistakes(options: EngineOptions, message: str) -> None:
    with pytest.raises(UserError) as caught:
        engine_config("m", options)
    assert caught.value.message.startswith(message)


def test_mistakes_about_the_server() -> None:
    with pytest.raises(UserError, match=r"port must be in \[0, 65535\], got 70000"):
        server_config("m", "m", ServerOptions(port=70000))
    with pytest.raises(UserError, match="shutdown_timeout must be a finite number"):
        server_config("m", "m", ServerOptions(shutdown_timeout=float("nan")))
    with pytest.raises(UserError, match="api_key must be non-empty"):
        server_config("m", "m", ServerOptions(api_key=[""]))
