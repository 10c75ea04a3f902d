"""Cold start: what a user would write to see one token. The bench times this file as a new process."""

import os
import sys

import llama_cpp
from llama_cpp import Llama

model, prompt = sys.argv[1:3]
if len(sys.argv) > 3:  # the bench found that this machine needs the weights as they are in the file
    params = llama_cpp.llama_model_default_params()
    params.use_extra_bufts = False
    llama_cpp.llama_cpp.llama_model_default_params = lambda: params
llm = Llama(model, n_threads=int(os.environ["GLASSLOOP_THREADS"]), verbose=False)
for piece in llm(prompt, max_tokens=1, temperature=0, stream=True):
    print(piece["choices"][0]["text"], flush=True)
