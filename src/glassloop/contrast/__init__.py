"""The same prompts with the same luck under two models: where answers part, and which weights did it."""
