"""The server of llama-cpp-python, for `bench.server`. With a fourth argument the weights stay as stored in
the file: the benchmark tries this if a build crashes in its default setting.
"""

import sys

import llama_cpp
from llama_cpp.server.__main__ import main

model, port, threads, *plain = sys.argv[1:]
if plain:
    params = llama_cpp.llama_model_default_params()
    params.use_extra_bufts = False
    llama_cpp.llama_cpp.llama_model_default_params = lambda: params
sys.argv = [
    "llama_cpp.server",
    *("--model", model, "--port", port, "--n_threads", threads, "--n_ctx", "4096"),
    *("--interrupt_requests", "False", "--verbose", "False"),
]
main()
