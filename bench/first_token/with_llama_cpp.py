"""Cold start: a short user program that generates one token. The benchmark times it as a new process."""

import os
import sys

import llama_cpp
from llama_cpp import Llama

model, prompt = sys.argv[1:3]
if len(sys.argv) > 3:  # this machine needs the weights as stored in the file; the benchmark found out
    params = llama_cpp.llama_model_default_params()
    params.use_extra_bufts = False
    llama_cpp.llama_cpp.llama_model_default_params = lambda: params
llm = Llama(model, n_threads=int(os.environ["GLASSLOOP_THREADS"]), verbose=False)
for piece in llm(prompt, max_tokens=1, temperature=0, stream=True):
    print(piece["choices"][0]["text"], flush=True)
