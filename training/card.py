"""Write the model card from measured figures: ``python -m training.card REPORT.json FOLDER``."""

from __future__ import annotations

import argparse
import json
import textwrap
from pathlib import Path
from typing import Any

from chiasm.evals.charts.fonts import FACES
from chiasm.evals.charts.words import LABELS
from chiasm.evals.scores import Score

_HEAD = """\
---
license: apache-2.0
library_name: transformers
pipeline_tag: image-text-to-text
---

# chart-reader

A very small vision-language model (3.7 million weights, Qwen2.5-VL architecture) that answers short questions about
simple charts. It ships with `chiasm` so that a server can be tried, and its accuracy tested, with no download.

**What it is for:** charts as the seeded generator of `chiasm.evals.charts` draws them (bars, tables, lines, pies,
scattered points, short clips given as several pictures; 112 to 336 pixels a side; names from a closed list of
{num_labels}, numbers up to 999), and questions in the words of that generator, such as "What is the value of Rome?",
"Which bar is the largest?" or "How many bars are there?". There are {num_faces} typefaces, one in a chart, and
but for scattered points, which are counted, every value is printed beside what it belongs to.

**What it can't do:** anything else. It knows no other words, does not converse, and reads other charts by luck.
{weak}
**How it was trained:** from random weights, only on charts of the generator; script, recipe, seed and log are in
`training/` of the project.
{trained}
## Accuracy

Relaxed accuracy as in ChartQA (5 % tolerance on numbers, exact match otherwise), greedy decoding, {limit} held-out
charts with one question each, drawn from the generator's full range, with one standard error (by Agresti and Coull:
above 0 also where all answers are right). The marks to reach were 90 % of single values, of the largest and smallest
and of counts, and 75 % of all.

```
chiasm eval charts --limit {limit} --seed {seed}
```

"""
_WEAK = 0.75


def card(report: dict[str, Any], trained: str, agreement: str) -> str:
    """The text of the model card.

    Args:
        report: what ``chiasm eval charts --json`` wrote.
        trained: sentences about the run.
        agreement: sentences about other ways of running.
    """
    own: dict[str, dict[str, int]] = next(iter(report["scores"].values()))
    scores = {kind: Score(**counts) for kind, counts in own.items()}
    lines = ["| | n | accuracy |", "|---|---:|---:|"]
    for kind, score in scores.items():
        accuracy = f"{100 * score.accuracy:.1f} ± {100 * score.standard_error:.1f} %"
        lines.append(f"| {kind} | {score.asked} | {accuracy} |")
    numbers = {"num_labels": len(LABELS), "num_faces": len(FACES), "limit": report["limit"], "seed": report["seed"]}
    head = _HEAD.format(**numbers, trained=_wrapped(trained), weak=_wrapped(_weak(scores)))
    return head + "\n".join(lines) + f"\n\n{_wrapped(agreement)}"


def _weak(scores: dict[str, Score]) -> str:
    weak = [name for name, score in scores.items() if score.accuracy < _WEAK]
    kinds, charts = (
        ", ".join(name.removeprefix(group) for name in weak if name.startswith(group))
        for group in ("question: ", "chart: ")
    )
    if not kinds:
        return ""
    of_charts = f"; and of these charts: {charts}" if charts else ""
    share = f"less than {100 * _WEAK:.0f} %"
    return f"Of the generator's own questions it answers {share} of these kinds rightly: {kinds}{of_charts}."


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 118) + "\n" if text else ""


def main() -> None:
    """Parse the command line and write ``README.md``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("report", type=Path, help="what chiasm eval charts --json wrote")
    parser.add_argument("folder", type=Path, help="of the exported checkpoint")
    parser.add_argument("--trained", default="", help="sentences about the run")
    parser.add_argument("--agreement", default="", help="sentences about other ways of running")
    options = parser.parse_args()
    text = card(json.loads(options.report.read_bytes()), options.trained, options.agreement)
    (options.folder / "README.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
