"""Builds the native op set: one plain shared library, no Python headers, with the kernels of every
instruction set of the architecture; which of them run is decided when it is loaded. So a wheel fits every
Python and every processor of its architecture. Without a compiler the library is left out, and glassloop runs
on its reference op set; with GLASSLOOP_REQUIRE_NATIVE set, the build fails instead.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

FOLDER = Path("src/glassloop/ops/native")
# Sums must keep their order, and a product its rounding: no contraction, no reassociation.
FLAGS = ["-std=gnu11", "-O3", "-g0", "-ffp-contract=off", "-fno-math-errno", "-pthread"]
FLAGS += ["-Wall", "-Wextra", "-Wno-psabi"]
# Kernels that take GCC more than twice as long with -O3, and are not faster for it.
LESS = {"kernels_portable.c": ["-O2"]}


class BuildLibrary(build_ext):
    """Compiles the sources in parallel. The library has a plain name: it is loaded by its path."""

    def build_extensions(self) -> None:
        compile_some = self.compiler.compile

        def compile_all(sources: list[str], **options: object) -> list[str]:
            given = options.pop("extra_postargs") or []

            def compile_one(source: str) -> list[str]:
                flags = [*given, *LESS.get(Path(source).name, [])]
                return compile_some([source], **options, extra_postargs=flags)

            with ThreadPoolExecutor(os.cpu_count()) as pool:
                return [file for files in pool.map(compile_one, sources) for file in files]

        self.compiler.compile = compile_all
        super().build_extensions()

    def get_ext_filename(self, fullname: str) -> str:
        return "/".join(fullname.split(".")) + ".so"


class BuildWheel(bdist_wheel):
    """Names the wheel for its platform and for any Python 3: the library is not an extension module."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


setup(
    ext_modules=[
        Extension(
            "glassloop.ops.native.libglassloop",
            sources=[str(file) for file in sorted(FOLDER.glob("*.c"))],
            depends=[str(file) for file in sorted(FOLDER.glob("*.h"))],
            extra_compile_args=FLAGS,
            extra_link_args=["-pthread"],
            libraries=["m"],
            optional=not os.environ.get("GLASSLOOP_REQUIRE_NATIVE"),
        )
    ],
    cmdclass={"build_ext": BuildLibrary, "bdist_wheel": BuildWheel},
)
