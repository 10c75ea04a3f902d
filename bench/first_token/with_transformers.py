"""Cold start: a short user program that generates one token. The benchmark times it as a new process."""

import os
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

model, prompt = Path(sys.argv[1]), sys.argv[2]
torch.set_num_threads(int(os.environ["GLASSLOOP_THREADS"]))
tokenizer = AutoTokenizer.from_pretrained(model.parent, gguf_file=model.name)
llm = AutoModelForCausalLM.from_pretrained(model.parent, gguf_file=model.name, dtype=torch.float32)
ids = tokenizer(prompt, return_tensors="pt").input_ids
print(tokenizer.decode(llm.generate(ids, max_new_tokens=1, do_sample=False)[0, -1]), flush=True)
