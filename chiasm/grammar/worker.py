"""The process that tries grammars out: ``python -m chiasm.grammar.worker FOLDER CHECKPOINT VOCAB_SIZE EOS...``.

It holds nothing of value: a grammar that takes too long or too much memory costs this process and its own request.
"""

from __future__ import annotations

import os
import resource
import sys
import threading
import time
from pathlib import Path

from chiasm.dist.bounded_worker import channel_name
from chiasm.dist.channel import Channel
from chiasm.dist.children import die_with_parent
from chiasm.errors import UserError
from chiasm.grammar.compile import GrammarCompiler
from chiasm.grammar.messages import NAME, ToWorker, Verdict
from chiasm.grammar.stacks import TRYING_BYTES
from chiasm.schema.structured import StructuredOutputs

_MAX_BYTES = 2 * 2**30
_NICENESS = 5
# The rank that samples compiles a form again, and others' answers wait for that if its prompt is computed sooner.
_WORK_SECONDS = 0.3


def main(runtime_dir: Path, compiler: GrammarCompiler) -> None:
    """Try every form that comes."""
    channel: Channel[StructuredOutputs] = Channel(runtime_dir, channel_name(NAME), ToWorker, is_binding=False)
    channel.send(Verdict(None))  # ready
    while (form := channel.receive()) is not None:
        channel.send(Verdict(refusal(form, compiler)))


def refusal(form: StructuredOutputs, compiler: GrammarCompiler) -> str | None:
    """What is wrong with a form, or with the work that compiling it takes; None if nothing is."""
    start = time.thread_time()  # unlike the time on a clock no longer on a busy machine
    try:
        compiler.compile(form)
    except UserError as error:
        return error.message
    if time.thread_time() - start > _WORK_SECONDS:
        return f"{form.param} takes more than {_WORK_SECONDS:g} s of a processor's time to compile."
    return None


if __name__ == "__main__":
    die_with_parent()
    os.nice(_NICENESS)
    resource.setrlimit(resource.RLIMIT_DATA, (_MAX_BYTES, _MAX_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # forms may crash it
    folder, checkpoint, *numbers = sys.argv[1:]
    vocab_size, *eos_token_ids = map(int, numbers)
    compiler = GrammarCompiler(Path(checkpoint), vocab_size, eos_token_ids)
    threading.stack_size(TRYING_BYTES)
    trying = threading.Thread(target=main, args=(Path(folder), compiler))
    trying.start()
    trying.join()
