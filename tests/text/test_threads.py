"""Many threads encode at once, each in its own way, and each gets what it would get alone."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from glassloop.text.tokenizer import Tokenizer


def test_threads_do_not_disturb_each_other(smollm2: Tokenizer) -> None:
    texts = [f"<|im_start|>user {i} it's {'x' * (i % 50)}<|im_end|> and so on" for i in range(200)]
    alone = {
        (text, parse): smollm2.encode(text, parse_special=parse) for text in texts for parse in (True, False)
    }
    assert all(alone[text, True] != alone[text, False] for text in texts)

    def work(seed: int) -> int:
        wrong = 0
        for i in range(400):
            text, parse = texts[(i * 7 + seed) % len(texts)], (i + seed) % 2 == 0
            ids = smollm2.encode(text, parse_special=parse)
            wrong += ids != alone[text, parse] or smollm2.decode(ids) != text
        return wrong

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(work, range(8))) == 0


def test_threads_render_at_once(smollm2: Tokenizer) -> None:
    def work(i: int) -> bool:
        ids = smollm2.encode_chat([{"role": "user", "content": f"number {i}"}])
        return f"number {i}<|im_end|>" in smollm2.decode(ids)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(200)))
