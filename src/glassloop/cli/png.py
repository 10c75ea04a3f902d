"""A drawing as a PNG file, with nothing but the standard library: boxes are filled, and words are set in the
five by seven dots of old displays. What these have no letter for (another script, an emoji) is a small frame;
SVG shows everything.
"""

from __future__ import annotations

import struct
import zlib

from glassloop.cli.picture import LETTER, Box, Colour, Drawing

_SCALE = 2  # dots of the file for each of the drawing's, so that it stays sharp
_TALL = 7
# For each letter from space to ~ five columns of dots from left to right, the top dot the lowest bit.
_LETTERS = bytes.fromhex(
    "0000000000 00005f0000 0007000700 147f147f14 242a7f2a12 2313086462 3649562050 0008070300 001c224100"
    "0041221c00 2a1c7f1c2a 08083e0808 0080703000 0808080808 0000606000 2010080402 3e5149453e 00427f4000"
    "7249494946 2141494d33 1814127f10 2745454539 3c4a494931 4121110907 3649494936 464949291e 0000140000"
    "0040340000 0008142241 1414141414 0041221408 0201590906 3e415d594e 7c1211127c 7f49494936 3e41414122"
    "7f4141413e 7f49494941 7f09090901 3e41415173 7f0808087f 00417f4100 2040413f01 7f08142241 7f40404040"
    "7f021c027f 7f0408107f 3e4141413e 7f09090906 3e4151215e 7f09192946 2649494932 03017f0103 3f4040403f"
    "1f2040201f 3f4038403f 6314081463 0304780403 6159494d43 007f414141 0204081020 004141417f 0402010204"
    "4040404040 0003070800 2054547840 7f28444438 3844444428 384444287f 3854545418 00087e0902 18a4a49c78"
    "7f08040478 00447d4000 2040403d00 7f10284400 00417f4000 7c04780478 7c08040478 3844444438 fc18242418"
    "18242418fc 7c08040408 4854545424 04043f4424 3c4040207c 1c2040201c 3c4030403c 4428102844 4c9090907c"
    "4464544c44 0008364100 0000770000 0041360800 0201020402".replace(" ", "")
)
_FRAME = bytes.fromhex("7f4141417f")
# Signs that our own tables use, by letters that look alike, and the dot in the middle.
_ALIKE = str.maketrans({"“": '"', "”": '"', "‘": "'", "’": "'", "–": "-", "—": "-", "…": "~"})
_OTHERS = {"·": bytes.fromhex("0000080000"), "↵": bytes.fromhex("08141c101e")}


def png(drawing: Drawing) -> bytes:
    canvas = _Canvas(drawing.width * _SCALE, drawing.height * _SCALE)
    for shape in drawing.shapes:
        if isinstance(shape, Box):
            x, y, width, height = (value * _SCALE for value in shape[:4])
            canvas.fill(x, y, width, height, shape.colour)
            continue
        text = shape.text.translate(_ALIKE)
        x = shape.x - LETTER * len(text) if shape.at_end else shape.x
        for letter in text:
            canvas.letter(x * _SCALE, (shape.y - _TALL) * _SCALE, _dots(letter), shape.colour)
            x += LETTER
    return canvas.png()


def _dots(letter: str) -> bytes:
    if letter in _OTHERS:
        return _OTHERS[letter]
    at = (ord(letter) - ord(" ")) * 5
    return _LETTERS[at : at + 5] if 0 <= at < len(_LETTERS) else _FRAME


class _Canvas:
    """Dots of three bytes, white at first."""

    def __init__(self, width: int, height: int) -> None:
        self._width, self._height = width, height
        self._rows = [bytearray(b"\xff" * 3 * width) for _ in range(height)]

    def fill(self, x: int, y: int, width: int, height: int, colour: Colour) -> None:
        x, stop = max(x, 0), min(x + width, self._width)
        if stop > x:
            for row in self._rows[max(y, 0) : y + height]:
                row[3 * x : 3 * stop] = bytes(colour) * (stop - x)

    def letter(self, x: int, y: int, columns: bytes, colour: Colour) -> None:
        for across, dots in enumerate(columns):
            for down in range(8):
                if dots >> down & 1:
                    self.fill(x + across * _SCALE, y + down * _SCALE, _SCALE, _SCALE, colour)

    def png(self) -> bytes:
        # Eight bits for each of red, green and blue; every row begins with 0, which means unfiltered.
        header = struct.pack(">IIBBBBB", self._width, self._height, 8, 2, 0, 0, 0)
        data = zlib.compress(b"".join(b"\0" + row for row in self._rows), 9)
        parts = ((b"IHDR", header), (b"IDAT", data), (b"IEND", b""))
        return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, body) for kind, body in parts)


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
