"""One tokenizer for all tests of the frontend, ours and Hugging Face's, read from the same files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from chiasm.engine.frontend.tokenizer import Tokenizer, load_tokenizer
from tests.checkpoints.common import make_tokenizer, save_tokenizer, write_json


@pytest.fixture(scope="session")
def text_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The text files of a checkpoint; not to be changed."""
    folder = tmp_path_factory.mktemp("text")
    save_tokenizer(folder, make_tokenizer())
    write_json(folder / "config.json", {"model_type": "qwen2_5_vl"})
    return folder


@pytest.fixture(scope="session")
def tokenizer(text_folder: Path) -> Tokenizer:
    return load_tokenizer(text_folder)


@pytest.fixture(scope="session")
def hf(text_folder: Path) -> Any:
    """Hugging Face's tokenizer of the same files."""
    return AutoTokenizer.from_pretrained(text_folder)
