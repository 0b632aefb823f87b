"""Sources of libraries that refuse all that a build of torch takes from NVIDIA's: `wanted.py TORCH_LIB FOLDER`.

Prints the names of the libraries. The stubs for the runtime, `rest.cpp`, are weak: `runtime.cpp` replaces those that it has.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ANSWERS = {
    "cublasGetProperty": "(int kind, int* value) { *value = kind == 0 ? 13 : kind == 1; return 0; }",
    "cublasGetVersion_v2": "(void*, int* value) { *value = 130100; return 0; }",
    "cudnnGetVersion": "() { return 92000; }",
    "cudnnGetProperty": "(int kind, int* value) { *value = kind == 0 ? 9 : kind == 1 ? 20 : 0; return 0; }",
    "cudnnGetCudartVersion": "() { return 13000; }",
    "ncclGetVersion": "(int* version) { *version = 22809; return 0; }",
}
REFUSED = '() { if (getenv("CARD_TRACE")) fprintf(stderr, "card in software: no %s\\n"); return 1; }'
SHOWN = '__attribute__((weak, visibility("default")))'
FOREIGN = re.compile(r"lib(cu|nv|nccl)\w*\.so\.\d+")
WITHOUT_VERSION = {
    "nccl": "libnccl.so.2",
    "cusparseLt": "libcusparseLt.so.0",
    "cuFile": "libcufile.so.0",
    "nvshmem": "libnvshmem_host.so.3",
    "curand": "libcurand.so.10",
}
NVSHMEM = "NVSHMEM"  # the one version that is not called as its library is


def told(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def main(libraries: Path, folder: Path) -> None:
    names: dict[str, set[str]] = {}
    versions: dict[str, str] = {}
    symbols: set[tuple[str, str]] = set()
    for file in sorted(libraries.glob("lib*.so")):
        needed = re.findall(r"\(NEEDED\).*\[(.*)\]", told("readelf", "-d", str(file)))
        names.update({name: names.get(name, set()) for name in needed if FOREIGN.fullmatch(name)})
        for word in told("nm", "-D", "--undefined-only", str(file)).split():
            if re.match(r"(__)?(cu|nv|nccl)[A-Za-z]", word):
                name, _, version = word.partition("@")
                symbols.add((name, version.lstrip("@")))
    runtime = next(name for name in names if name.startswith("libcudart.so"))
    for name, version in symbols:
        if version:
            owner = WITHOUT_VERSION["nvshmem"] if version == NVSHMEM else version
            versions[owner] = version
        else:
            owner = next((library for start, library in WITHOUT_VERSION.items() if name.startswith(start)), runtime)
        if owner in names:
            names[owner].add(name)
    names[next(name for name in names if name.startswith("libcublas.so"))].add("cublasGetProperty")
    for library, wanted in names.items():
        stem = "rest" if library == runtime else library
        bodies = [f'extern "C" {SHOWN} int {name}{ANSWERS.get(name, REFUSED % name)}' for name in sorted(wanted)]
        (folder / f"{stem}.cpp").write_text("\n".join(["#include <cstdio>", "#include <cstdlib>", *bodies, ""]))
        if library in versions:
            (folder / f"{stem}.map").write_text(f"{versions[library]} {{ global: {'; '.join(sorted(wanted))}; }};\n")
    print("\n".join(sorted(names.keys() - {runtime, "libcuda.so.1", "libnvrtc.so.13"})))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
