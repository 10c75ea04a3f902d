"""Cold start: a short user program that generates one token. The benchmark times it as a new process."""

import sys

from glassloop import LLM, Sampling

model, prompt = sys.argv[1:3]
for token in LLM(model).stream(prompt, Sampling(temperature=0, max_tokens=1)):
    print(token.text, flush=True)
