"""The loops of `loops` as machine code, which numba makes once for each kind of processor.

The code is kept in `__pycache__` beside the source, and in the user's cache folder, where other checkouts of the same source
find it, such as that of a rerun. Its name changes with the loops, this module, numba, LLVM and the processor. A process that
finds it loads it by LLVM alone: numba itself, which takes half a second to import and seconds to compile, is only needed to
make it. If no folder takes it, each process makes it for itself.

This hangs on the insides of numba and LLVM. With other versions than `common.tested_versions` names, the loops are made by
`numba.cfunc`, which takes longer at the start of each process and computes the same bits.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import importlib.metadata
import math
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from orchestrator.common import file_cache, tested_versions

_LONG, _AT = ctypes.c_int64, ctypes.c_void_p
_FLOATS: Final = ("float64", "float32")  # of the total: exact, fast
_INTEGERS: Final = ("int64", "int16", "int8")  # of the total: any sum, few levels
_IN_C: Final[Mapping[str, Any]] = {
    "int64": _LONG,
    "float64": ctypes.c_double,
    "float32": ctypes.c_float,
    "boolean": ctypes.c_bool,
}


@functools.cache
def _signatures() -> dict[str, str]:
    """name -> its arguments as numba calls them. The first word of a name is the function in `loops`. A second one is the type
    of the elements of total or result."""
    found = {
        "fingerprint": "CPointer(int32), int64, int64",
        "largest": "CPointer(int32), int64",
        "choose": "CPointer(int32), int64, int64, CPointer(int64), CPointer(int64)",
        "pack_gaps": "CPointer(int64), int64, CPointer(uint8)",
        "add_chosen": "CPointer(uint8), int64, CPointer(float32), int64, float64, CPointer(float64), int64",
        "differ": "CPointer(float32), CPointer(float32), int64, float64, float64, CPointer(int64)",
        "claim": "CPointer(int64), int64, int64, CPointer(int64), CPointer(int64), int64, int64, int64",
        "pack": "int64, int64, boolean, int64, int64",
        "unpack": "int64, int64, int64, int64, boolean, int64",
        "locate": "int64, int64, int64, boolean, CPointer(int64)",
        "widen_add": "int64, int64, int64, int64, int64, int64",
        "widen_divide": "int64, int64, int64, int64, float64, boolean, int64, int64, int64, CPointer(int64)",
        "absorb": "CPointer(int64), int64, CPointer(int64), CPointer(int64), CPointer(int64), boolean",
    }
    for kind in (*_FLOATS, *_INTEGERS):
        found[f"join {kind}"] = f"CPointer(int64), int64, int64, CPointer({kind})"
    for kind in _INTEGERS:
        found[f"keep {kind}"] = f"CPointer(int64), int64, int64, CPointer({kind}), int64, CPointer({kind})"
    for kind in _INTEGERS[1:]:
        found[f"quantize {kind}"] = f"CPointer(float32), int64, float64, float64, float64, CPointer({kind}), boolean"
        found[f"dequantize {kind}"] = f"CPointer({kind}), int64, float64, CPointer(float32)"
    for kind in _FLOATS:
        found[f"add {kind}"] = (
            "int64, int64, CPointer(int64), CPointer(float64), CPointer(float64), CPointer(int64), "
            f"CPointer({kind}), int64, boolean, CPointer(int32), boolean, {kind}, boolean, int64, CPointer({kind}), "
            "CPointer(int64)"
        )
        found[f"divide {kind}"] = f"CPointer(int64), int64, int64, {kind}, boolean, int64, int64, CPointer({kind})"
    return found


@functools.cache
def _in_c(name: str) -> list[Any]:
    """The arguments of a loop as C calls them."""
    return [_IN_C.get(each, _AT) for each in _signatures()[name].split(", ")]


class Code(Protocol):
    """The loops as functions of C. Arrays are given by the addresses of their elements, which lie one after the other."""

    def loop(self, name: str) -> Callable[..., int]:
        """The loop of this name, for any thread."""

    def prepared(self, name: str, arguments: Sequence[Any]) -> Callable[[], int]:
        """The same with arguments of ctypes, which are read at each call. For one thread."""


class Loops(dict[str, Callable[..., int]]):
    """The loops, callable: ["add float64"] is `loops._add` for a total of that type. They are loaded when one is first asked
    for, or by `load`."""

    def __init__(self) -> None:
        super().__init__()
        self._code: Code | None = None
        self._loading = threading.RLock()

    def load(self) -> None:
        """Have all of them at hand. Safe to call twice."""
        for name in _signatures():
            self[name]

    def prepared(self, name: str, *arguments: Any) -> Callable[[], int]:
        """A loop with these arguments, which are converted only once; some are of ctypes, so that they can be changed. For one
        thread."""
        kinds = _in_c(name)
        return self._loaded().prepared(
            name, [each if isinstance(each, kind) else kind(each) for each, kind in zip(arguments, kinds, strict=True)]
        )

    def __missing__(self, name: str) -> Callable[..., int]:
        with self._loading:
            self[name] = found = self._loaded().loop(name)
        return found

    def _loaded(self) -> Code:
        with self._loading:
            if self._code is None:
                self._code = load()
            return self._code


class ObjectCode:
    """`Code` of object files, called as numba calls it: behind two pointers, for the result and for an exception. The answer is
    its state."""

    def __init__(self, objects: Mapping[str, bytes]) -> None:
        from llvmlite import binding as llvm

        machine = llvm.Target.from_default_triple().create_target_machine()
        self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)  # owns the code
        for data in objects.values():
            self._engine.add_object_file(llvm.ObjectFileRef.from_data(data))
        self._engine.finalize_object()

    def loop(self, name: str) -> Callable[..., int]:
        function = self._function(name)

        def call(*arguments: Any) -> int:
            result = _LONG()
            state = function(ctypes.byref(result), None, *arguments)
            assert state == 0, f"the loop {name} cannot fail"
            return result.value

        return call

    def prepared(self, name: str, arguments: Sequence[Any]) -> Callable[[], int]:
        function, result = self._function(name), _LONG()
        place = ctypes.byref(result)

        def call() -> int:
            function(place, None, *arguments)
            return result.value

        return call

    def _function(self, name: str) -> Any:
        signature = ctypes.PYFUNCTYPE(ctypes.c_int32, ctypes.POINTER(_LONG), _AT, *_in_c(name))
        return signature(self._engine.get_function_address(_symbol(name)))


class PublicCode:
    """`Code` by `numba.cfunc` alone, for versions of numba and LLVM whose insides nobody has tried. It computes the same bits.
    numba is imported in each process and keeps what it makes where it finds room for it."""

    def __init__(self) -> None:
        self._compiled: dict[str, Any] = {}  # owns the code

    def loop(self, name: str) -> Callable[..., int]:
        if name not in self._compiled:
            with _compiling():
                self._compiled[name] = self._made(name)
        found: Callable[..., int] = ctypes.PYFUNCTYPE(_LONG, *_in_c(name))(self._compiled[name].address)
        return found

    def prepared(self, name: str, arguments: Sequence[Any]) -> Callable[[], int]:
        return functools.partial(self.loop(name), *arguments)

    @staticmethod
    def _made(name: str) -> Any:
        try:
            return _cfunc(name, cache=True)
        except RuntimeError:  # no folder takes it
            return _cfunc(name, cache=False)


def inverts(divisor: float) -> bool:
    """Whether a divisor is a power of two, so that to multiply by its inverse is to divide."""
    return math.frexp(divisor)[0] == 0.5


def load() -> Code:
    """The code from the cache; made and kept there if it has none. With versions that were not tried, numba's own."""
    if not (tested_versions.NUMBA.is_here and tested_versions.LLVMLITE.is_here):
        return PublicCode()
    from llvmlite import binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    name = f"loops-{_version()}.o"
    kept = file_cache.read(_folders(), name)
    if kept is not None:
        return ObjectCode(_unpacked(kept))
    objects = _made()
    file_cache.keep(_folders(), name, _packed(objects))
    return ObjectCode(objects)


def _version() -> str:
    """A digest of all that the machine code depends on."""
    from llvmlite import binding as llvm

    here = Path(__file__)
    digest = hashlib.sha256()
    for source in (here, here.with_name("loops.py")):
        digest.update(source.read_bytes())
    numba = [f"{name}={value}" for name, value in sorted(os.environ.items()) if name.startswith("NUMBA_")]
    versions = [importlib.metadata.version(name) for name in ("numba", "llvmlite", "numpy")]
    machine = [llvm.get_default_triple(), llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()]
    digest.update("\n".join([*versions, *machine, *numba]).encode())
    return digest.hexdigest()[:16]


def _folders() -> Iterator[Path]:
    return file_cache.folders(__file__)


def _packed(objects: Mapping[str, bytes]) -> bytes:
    """Lengths and objects in the order of the signatures."""
    parts = [objects[name] for name in _signatures()]
    return b"".join(len(part).to_bytes(8, "little") for part in parts) + b"".join(parts)


def _unpacked(data: bytes) -> dict[str, bytes]:
    found, start = {}, 8 * len(_signatures())
    for place, name in enumerate(_signatures()):
        end = start + int.from_bytes(data[8 * place : 8 * place + 8], "little")
        found[name] = data[start:end]
        start = end
    return found


def _made() -> dict[str, bytes]:
    """The machine code of each loop."""
    found = {}
    with _compiling():
        for name in _signatures():
            compiled = _cfunc(name)
            native = compiled.native_name.removeprefix("cfunc.")
            found[name] = _object(compiled.inspect_llvm(), native, _symbol(name))
    return found


@contextlib.contextmanager
def _compiling() -> Iterator[None]:
    """Within the block numba compiles, even if NUMBA_DISABLE_JIT is set, which is for loops that a user debugs."""
    import numba

    config: Any = numba.config
    disabled, config.DISABLE_JIT = config.DISABLE_JIT, 0
    try:
        yield
    finally:
        config.DISABLE_JIT = disabled


def _cfunc(name: str, *, cache: bool = False) -> Any:
    """Raises RuntimeError where numba is to cache it and finds no folder to do so."""
    import numba

    from orchestrator.numerics import loops

    function = getattr(loops, f"_{name.partition(' ')[0]}")
    return numba.cfunc(f"int64({_signatures()[name]})", error_model="numpy", cache=cache)(function)


def _object(assembly: str, native: str, symbol: str) -> bytes:
    """Object code of the function alone, under a name of ours. Its wrapper for Python is left out, which needs numba to
    run."""
    from llvmlite import binding as llvm

    module: Any = llvm.parse_assembly(assembly)
    for function in module.functions:
        if not function.is_declaration and function.name != native:
            function.linkage = "internal"
        if function.name == "NRT_MemInfo_call_dtor":  # frees an array that numba has allocated; there is none
            function.name = "abort"
    module.get_function(native).name = symbol
    machine: Any = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=3
    )
    passes = llvm.create_new_module_pass_manager()
    passes.add_global_dead_code_eliminate_pass()
    passes.run(module, llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options()))
    return bytes(machine.emit_object(module))


def _symbol(name: str) -> str:
    return f"orchestrator_{name.replace(' ', '_')}"
