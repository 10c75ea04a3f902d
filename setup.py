"""Builds the native op set: one plain shared library, no Python headers. Without a compiler it is left out,
and glassloop runs on its reference op set.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

FOLDER = Path("src/glassloop/ops/native")
# Sums must keep their order, and a product its rounding: no contraction, no reassociation.
FLAGS = ["-std=gnu11", "-O3", "-ffp-contract=off", "-fno-math-errno", "-pthread"]
FLAGS += ["-Wall", "-Wextra", "-Wno-psabi"]


class BuildLibrary(build_ext):
    """Compiles the sources in parallel. The library has a plain name: it is loaded by its path."""

    def build_extensions(self) -> None:
        compile_some = self.compiler.compile

        def compile_all(sources: list[str], **options: object) -> list[str]:
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                objects = pool.map(lambda source: compile_some([source], **options), sources)
                return [file for files in objects for file in files]

        self.compiler.compile = compile_all
        super().build_extensions()

    def get_ext_filename(self, fullname: str) -> str:
        return "/".join(fullname.split(".")) + ".so"


setup(
    ext_modules=[
        Extension(
            "glassloop.ops.native.libglassloop",
            sources=[str(file) for file in sorted(FOLDER.glob("*.c"))],
            depends=[str(file) for file in sorted(FOLDER.glob("*.h"))],
            extra_compile_args=FLAGS,
            extra_link_args=["-pthread"],
            libraries=["m"],
            optional=True,
        )
    ],
    cmdclass={"build_ext": BuildLibrary},
)
