"""What ``make quick`` runs: all tests but those of whole engines and servers, and of families but one.

python -m tests.quick prints it as arguments of pytest.
"""

from __future__ import annotations

import sys

from tests.isa import ROOT

LEFT_OUT = (
    "tests/bench", "tests/clients", "tests/e2e", "tests/evals", "tests/threats", "tests/training",
    "tests/engine/test_encoder_graphs.py", "tests/engine/test_launch.py", "tests/engine/test_memory.py",
    "tests/engine/test_smoothness.py", "tests/grammar/test_checker.py",
    "tests/models/test_dummy_weights.py", "tests/models/test_glm4v.py", "tests/models/test_llama4.py",
    "tests/models/test_mllama.py", "tests/models/test_published_shapes.py", "tests/models/test_qwen2_vl.py",
    "tests/models/test_qwen3_vl.py", "tests/models/test_weight_tying.py",
    "tests/multimodal/test_pool.py", "tests/server/test_contract.py", "tests/server/test_disconnect.py",
    "tests/server/test_lifetime.py", "tests/server/test_page_in_browser.py", "tests/test_isa.py",
    "tests/test_skipped.py", "tests/vision/test_encode.py", "tests/vision/test_fit.py",
    "tests/vision/test_row_cuts.py",
)  # fmt: skip
"""Files and folders whose tests take seconds each."""
ONE_ENGINE = "tests/e2e/test_families.py::test_answers_equal_hugging_face[qwen2_5_vl]"
"""Against Hugging Face, on one rank and on two."""


def chosen() -> list[str]:
    """The files and folders, and what is left out of these, as arguments of pytest."""
    folders = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").iterdir() if path.is_dir())
    files = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").glob("test_*.py"))
    places = [place for place in (*folders, *files) if place not in LEFT_OUT and not place.endswith("__pycache__")]
    return [ONE_ENGINE, *places, *(f"--ignore={place}" for place in LEFT_OUT if place.count("/") > 1)]


if __name__ == "__main__":
    sys.stdout.write(" ".join(chosen()))
