"""What the scheduler takes for a step in which so many sequences decode; the ranks wait for it.

python -m bench.scheduling [--sequences 8 64 256] [--steps 200]
"""

from __future__ import annotations

import argparse
import time
from statistics import median

from chiasm.bench.checkpoint import checkpoint_shape
from chiasm.config.built_in import BUILT_IN_FOLDER
from chiasm.engine.scheduler.limits import SchedulerLimits
from chiasm.engine.scheduler.scheduler import Scheduler
from chiasm.schema.facts import EncoderRates
from chiasm.schema.plan import SampledToken, StepPlan, StepResult
from chiasm.schema.request import EngineRequest
from chiasm.schema.sampling import SamplingParams

_BLOCK_SIZE = 16
_PROMPT_TOKENS = 256
_RATES = EncoderRates(1e-6, 1e-9, 1e-9, 1e-6, 1e-9, 4, can_overlap=False, packs_units=False)


def limits(num_sequences: int, num_tokens: int) -> SchedulerLimits:
    """Room for all of them."""
    return SchedulerLimits(
        num_blocks=num_sequences * (num_tokens // _BLOCK_SIZE + 1),
        block_size=_BLOCK_SIZE,
        max_model_len=num_tokens,
        max_num_seqs=num_sequences,
        max_num_batched_tokens=num_sequences * _PROMPT_TOKENS,
        max_num_batched_patches=1024,
        encoder_step_seconds=None,
        encoder_step_patches=None,
        feature_row_bytes=32,
        encoder_cache_bytes=1 << 20,
        encoder_kept_bytes=1 << 20,
        enable_prefix_caching=True,
        num_ranks=1,
        encoder_mode="auto",
        min_units_per_rank=0,
        encoder=checkpoint_shape(str(BUILT_IN_FOLDER)),
        encoder_rates=_RATES,
        eos_token_ids=(),
    )


def step_seconds(num_sequences: int, num_steps: int) -> list[float]:
    """Of each decode step, for planning it and taking in its result."""
    scheduler = Scheduler(limits(num_sequences, _PROMPT_TOKENS + num_steps + 2))
    sampling = SamplingParams(max_tokens=num_steps + 1, temperature=0.0, ignore_eos=True)
    for index in range(num_sequences):
        tokens = tuple(range(index * _PROMPT_TOKENS, (index + 1) * _PROMPT_TOKENS))
        scheduler.add(EngineRequest(f"seq-{index}", tokens, (), sampling))
    seconds = []
    for _ in range(num_steps + 1):
        begin = time.perf_counter()
        plan = scheduler.schedule()
        planned = time.perf_counter()
        result = StepResult(plan.step, tuple(_sampled(plan)), {}, compute_seconds=0.05)
        computed = time.perf_counter()
        scheduler.apply(plan, result)
        scheduler.take_deltas()
        seconds.append(planned - begin + time.perf_counter() - computed)
    return seconds[1:]


def _sampled(plan: StepPlan) -> list[SampledToken]:
    return [SampledToken(part.request_id, 5) for part in plan.scheduled if part.is_sampling]


def main() -> None:
    """Print a line for each number of sequences."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sequences", type=int, nargs="+", default=[8, 64, 256])
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()
    for number in options.sequences:
        print(f"{number} sequences: {1000 * median(step_seconds(number, options.steps)):.2f} ms a step")


if __name__ == "__main__":
    main()
