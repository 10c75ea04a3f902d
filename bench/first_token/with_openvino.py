"""Cold start: a short user program that generates one token. The benchmark times it as a new process."""

import os
import sys

import openvino_genai

model, prompt = sys.argv[1:3]
options: dict[str, object] = {"INFERENCE_NUM_THREADS": int(os.environ["GLASSLOOP_THREADS"])}
if len(sys.argv) > 3:
    options["INFERENCE_PRECISION_HINT"] = sys.argv[3]
pipeline = openvino_genai.LLMPipeline(model, "CPU", **options)
print(pipeline.generate(prompt, max_new_tokens=1, do_sample=False, apply_chat_template=False), flush=True)
