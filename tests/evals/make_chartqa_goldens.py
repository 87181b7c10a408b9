"""What lm-eval's own scorer says of 240 answers: ``python tests/evals/make_chartqa_goldens.py``, where lm-eval is.

mistral-evals' two scores are lm-eval's but for one line: a text keeps its final punctuation there.
"""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

from lm_eval.tasks.chartqa import utils

FILE = Path(__file__).with_name("chartqa_goldens.json")

TARGETS = [
    ["14"], ["0.57"], ["3,000"], ["$1,200"], ["23%"], ["0"], ["2018"], ["Yes"], ["Blue"], ["C"], ["[Asia, Africa]"],
    ["United States"], ["-3.5"], ["1.0"], ["'Others'"], ["No", "None"],
]  # fmt: skip
ANSWERS = [
    "Final Answer: {t}", "The answer is {t}.", "Final Answer: {t}.", "**Final Answer:** {t}",
    "I think it is {t}\nFinal Answer: {u}", "Answer: {u}", "{u}", "It was {t} of all", "\n\n{t}",
    "Final Answer:\n\n*{t}*!", "answer: [{t}]", "Final Answer: {u}\nFINAL ANSWER: \"{t}\"", "so 14 and 23%, 2,018.",
    "Final Answer: {t}%", "Final Answer: 14.6 units",
]  # fmt: skip
NEAR = {
    "14": "14.6", "0.57": "57%", "3,000": "2900", "$1,200": "1260", "23%": "0.23", "0": "0.0", "2018": "2,018",
    "Yes": "yes", "Blue": "blue!", "C": "Cyan", "[Asia, Africa]": "Asia, Africa", "United States": "united states",
    "-3.5": "3.5", "1.0": "1", "'Others'": "Others", "No": "None",
}  # fmt: skip


def main() -> None:
    rows = []
    for targets, form in product(TARGETS, ANSWERS):
        answer = form.format(t=targets[0], u=NEAR[targets[0]])
        scores: dict[str, float] = {}
        for name in ("exact_match", "relaxed_accuracy", "anywhere_accuracy"):
            scores |= getattr(utils, name)(targets, [answer]) or {}
        rows.append({"answer": answer, "targets": targets, "scores": scores})
    FILE.write_text(json.dumps(rows, indent=0, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
