"""Sees what the user's code reads while a pipeline is built and proved: files, hosts, environment variables.

    with watching.window(declared) as window: ...
    window.reads                     # what is neither declared, nor of the environment, nor made within the window

Files and connections are seen by an audit hook (PEP 578), whoever opens them: a data set may be a library's class. Only
variables that the user's own code reads count, and not those that libraries read. A hook cannot be removed, so outside of a
window it returns at once, and `os.environ` is as it was.

Files that native code opens by itself (HDF5, Arrow, safetensors) are seen if it still has them open or mapped as the window
closes. Not seen are those that it has closed, reads of other processes, and the environment taken as a whole
(`dict(os.environ)`).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import site
import stat
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

from orchestrator.common import file_cache
from orchestrator.common.distributions import SITES, installed_beside
from orchestrator.data.files import waiting
from orchestrator.data.files.cache import folder as cache_folder
from orchestrator.data.files.dataset import CHECKED
from orchestrator.data.plan import Declared
from orchestrator.records.input_audit import File, InputAudit, Value, holds, is_below, recorded

_MOST_FILES = 10_000
_HASHED_BYTES = 2**28  # of all files together
_PIECE = 2**20
_OWN = str(Path(__file__).resolve().parent.parent)
_KERNEL = ("/proc/", "/sys/")
_SYSTEM = (
    *("/proc", "/sys", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/bin", "/sbin", "/run/systemd", "/var/cache"),
    *(f"/usr/{name}" for name in ("lib", "lib32", "lib64", "libexec", "share", "bin", "sbin", "include")),
    *(f"/usr/local/{name}" for name in ("lib", "lib64", "share", "bin", "include", "etc")),
)
# Files of libraries in the home: compiled code, fonts, settings and passwords of programs.
_AT_HOME = (
    ".triton",
    ".nv",
    ".netrc",
    "_netrc",
    ".cache/torch_extensions",
    ".cache/torch/kernels",
    ".cache/matplotlib",
)
_CACHES = (".config/matplotlib", ".cache/fontconfig", ".cache/pip", ".config/pip", ".keras", ".numba_cache")
# Imports are judged by their modules, and installed files by the list of packages, beside whose names this stands.
_CODE = re.compile(r".*(\.(py[cdiwx]?|pth|nb[ci]|so(\.[0-9]+)*)|\.(egg|dist)-info(/[^/]*)?)")
_OF_RAY = re.compile(r"/session_(latest|\d{4}-\d\d-\d\d_[\d_-]+)(/|$)|/tmp/ray(/|$)")
_OF_TORCH = re.compile(r"/torchinductor_[^/]+(/|$)")
_RECORDED = re.compile(r".*/\.(orchestrator|git)(/.*)?")  # runs, and what git has of the code
# Variables of the shell, the user and the session, of Ray, and those that change bits, which are recorded with the
# environment.
_PLACES = re.compile(
    r"PATH|HOME|USER|LOGNAME|SHELL|PWD|OLDPWD|TERM|TMPDIR|TEMP|TMP|HOSTNAME|LANG|LANGUAGE|LC_\w+|TZ|COLUMNS|LINES|NO_COLOR"
    r"|VIRTUAL_ENV|PYTHON\w*|CUDA_VISIBLE_DEVICES|RAY_\w+|XDG_\w+"
    r"|(MKL|OMP|KMP|GOMP|ATEN|ONEDNN|DNNL|OPENBLAS|BLIS|NPY|CUBLAS|CUBLASLT|CUDA|CUDNN|NCCL|TORCH|PYTORCH)_\w+"
)
_LOADERS = (__file__, "/ctypes/__init__.py", "/numpy/ctypeslib.py", "/numpy/ctypeslib/_ctypeslib.py", "/torch/_ops.py")
_MAPPINGS = ("<frozen os>", "<frozen _collections_abc>", os.__file__)
_WHOLE = ("__iter__", "copy", "__repr__", "__or__", "__ror__")  # of a mapping: what takes all of it

_lock = threading.RLock()
_windows: tuple[Window, ...] = ()
_hooked = False


class Window:
    """The reads of the threads that began it, or that began within it."""

    def __init__(self, declared: Declared) -> None:
        self.audit = InputAudit()
        self._declared = declared
        self._project = str(Path.cwd())
        self.packages = installed_beside(tuple(sys.path), self._project)
        inputs = [os.path.normpath(Path.cwd() / each) for each in declared.inputs]
        self._inputs = tuple({*inputs, *map(os.path.realpath, inputs)})
        self._others = {*sys._current_frames()} - {threading.get_ident()}
        self._opened: dict[str, bool] = {}  # whether it is a folder
        self._libraries: set[str] = set()  # those of them that the user's code loaded by their paths
        self._held_before = _held()
        self._opened_by_others: set[str] = set()
        self._made: set[str] = set()
        self._more = 0
        self._hosts: dict[str, None] = {}
        self._asked: dict[int, tuple[str, str]] = {}  # by thread: the last name that was looked up, and its port
        self._variables: dict[str, Value] = {}
        self._assigned: set[str] = set()

    def sees(self) -> bool:
        return threading.get_ident() not in self._others

    def opened(self, path: Any, _mode: Any, flags: Any) -> None:
        if isinstance(path, str) and path.startswith(_KERNEL):  # asked for memory, often
            return
        place = _absolute(path)
        if place is None or not isinstance(flags, int):
            return
        if flags & os.O_TRUNC or (flags & os.O_CREAT and not os.path.lexists(place)):
            self._make(place)
        elif flags & os.O_ACCMODE != os.O_WRONLY:
            self._add(place, folder=False)

    def opened_by_another(self, path: Any, *_rest: Any) -> None:
        if (place := _absolute(path)) is not None:
            self._opened_by_others |= {place, os.path.realpath(place)}

    def listed(self, path: Any = None) -> None:
        place = _absolute("." if path is None else path)
        if place is not None and not self._is_searched(place):
            self._add(place, folder=True)

    def made(self, path: Any, *_rest: Any) -> None:
        if (place := _absolute(path)) is not None and not os.path.lexists(place):
            self._make(place)

    def renamed(self, source: Any, target: Any, *_rest: Any) -> None:
        before, after = _absolute(source), _absolute(target)
        if before is not None and after is not None and self._is_made(before):
            self._make(after)

    def loaded(self, name: Any) -> None:
        """A library that the user's code loads by its path. One without a folder is of the system."""
        if not isinstance(name, str | bytes) or "/" not in os.fsdecode(name) or not self._is_loaded_by_user():
            return
        if (place := _absolute(name)) is not None:
            self._libraries |= {place, os.path.realpath(place)}
            self._add(place, folder=False)

    def _is_loaded_by_user(self) -> bool:
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename.endswith(_LOADERS):
            frame = frame.f_back
        return frame is not None and _is_users(frame.f_code.co_filename, self.packages)

    def connected(self, _socket: Any, address: Any) -> None:
        if isinstance(address, tuple) and len(address) > 1:
            name, port = self._asked.get(threading.get_ident(), ("", ""))
            self._hosts[f"{name if port == str(address[1]) else address[0]}:{address[1]}"] = None
        elif isinstance(address, str | bytes) and address:
            place = os.fsdecode(address)
            if not (_OF_RAY.search(place) or is_below(place, _SYSTEM) or self._is_made(place)):
                self._hosts[place] = None

    def looked_up(self, host: Any, port: Any, *_rest: Any) -> None:
        if isinstance(host, str | bytes):
            name = host if isinstance(host, str) else os.fsdecode(host)
            self._asked[threading.get_ident()] = name, str(port)

    def variable(self, name: str, value: str | None) -> None:
        if name not in self._assigned and not _PLACES.fullmatch(name):
            self._variables.setdefault(name, recorded(name, value))

    def assigned(self, name: str) -> None:
        self._assigned.add(name)

    def close(self) -> None:
        """Find out what was read: files that are there, and not of the environment."""
        for place in sorted(_held() - self._held_before - self._opened_by_others):
            self._add(place, folder=False)
        declared = {name: recorded(name, os.environ.get(name)) for name in self._declared.variables}
        variables = {name: (value,) for name, value in {**declared, **self._variables}.items()}
        self.audit = InputAudit(self._files(), tuple(sorted(self._hosts)), dict(sorted(variables.items())), self._more)

    def _make(self, place: str) -> None:
        if place not in self._opened:
            self._made.add(place)

    def _is_made(self, place: str) -> bool:
        while place not in self._made:
            if place in ("/", ""):
                return False
            place = str(Path(place).parent)
        return True

    def _add(self, place: str, *, folder: bool) -> None:
        if place in self._opened or self._is_made(place) or not self._counts(place):
            return
        if len(self._opened) < _MOST_FILES:
            self._opened[place] = folder
        else:
            self._more += 1

    def _counts(self, place: str) -> bool:
        """Whether it is neither of the environment nor declared."""
        inside = self._inside(place)
        path = place if inside is None else f"/{inside}"
        if place in CHECKED or is_below(place, self._inputs) or _RECORDED.fullmatch(path):
            return False
        if _CODE.fullmatch(place) and place not in self._libraries:
            return False
        installed = (*_installed(), *self.packages)
        if SITES & set(path.split("/")) or is_below(place, (*installed, *_caches(), *_own_caches())):
            return False
        return inside is not None or not (_OF_RAY.search(place) or _OF_TORCH.search(place))

    def _is_searched(self, place: str) -> bool:
        """Whether it is a folder outside the project that modules are imported from: whoever looks for a package lists it."""
        return self._inside(place) is None and any(each and _absolute(each) == place for each in sys.path)

    def _inside(self, place: str) -> str | None:
        return os.path.relpath(place, self._project) if is_below(place, [self._project]) else None

    def _files(self) -> dict[str, File]:
        found = {}
        left = _HASHED_BYTES
        for place, folder in self._opened.items():
            file = self._file(place, left, folder=folder)
            if file is not None:
                found[file.name] = file
                left -= 0 if file.sha256 is None else file.size or 0
        return dict(sorted(found.items()))

    def _file(self, place: str, left: int, *, folder: bool) -> File | None:
        real = os.path.realpath(place)
        if not self._counts(real):
            return None
        try:
            status = Path(real).stat()
        except OSError:  # it was looked for, and is not there
            return None
        inside = self._inside(place)
        also = (self._inside(real) or real) if real != place else None
        if folder or stat.S_ISDIR(status.st_mode):
            return None if holds(place, self._inputs) else File(place, inside, also, folder=True)
        if not stat.S_ISREG(status.st_mode):
            return None
        hashed = _sha256(real) if status.st_size <= left else None
        return File(place, inside, also, False, status.st_size, hashed)


@contextlib.contextmanager
def window(declared: Declared) -> Iterator[Window]:
    """While the block lasts, what is read is seen; at its end `reads` has it."""
    opened = Window(declared)
    _begin(opened)
    try:
        yield opened
    finally:
        _end(opened)
    opened.close()


def _begin(opened: Window) -> None:
    global _windows, _hooked
    with _lock:
        if not _hooked:
            sys.addaudithook(_hook)
            _hooked = True
        if not _windows:
            _watch_variables()
        _windows = (*_windows, opened)


def _end(opened: Window) -> None:
    global _windows
    with _lock:
        _windows = tuple(each for each in _windows if each is not opened)
        if not _windows:
            _leave_variables()


def _hook(event: str, args: tuple[Any, ...]) -> None:
    if not _windows or waiting.is_fetching():
        return
    handler = _HANDLERS.get(event)
    if handler is None or sys._getframe(1).f_code.co_filename.startswith("<frozen importlib"):
        return
    for each in _windows:
        # An exception of a hook would be raised by the call that it hears of; odd arguments are that call's own affair.
        with contextlib.suppress(TypeError, ValueError):
            if each.sees():
                handler(each, *args)
            elif event == "open":
                each.opened_by_another(*args)


_HANDLERS: Mapping[str, Callable[..., None]] = {
    "open": Window.opened,
    "os.listdir": Window.listed,
    "os.scandir": Window.listed,
    "os.mkdir": Window.made,
    "os.rename": Window.renamed,
    "os.link": Window.renamed,
    "ctypes.dlopen": Window.loaded,
    "sqlite3.connect": lambda window, path: window.opened(path, None, os.O_RDONLY),
    "socket.connect": Window.connected,
    "socket.sendto": Window.connected,
    "socket.getaddrinfo": Window.looked_up,
}

_Environ: Any = type(os.environ)
_USUAL = {name: getattr(_Environ, name) for name in ("__getitem__", "__iter__", "__setitem__", "__delitem__")}
_taking: tuple[int, int] | None = None  # who goes through all variables just now: frame and instruction


def _watch_variables() -> None:
    _Environ.__getitem__ = _read
    _Environ.__iter__ = _go_through
    _Environ.__setitem__ = _set
    _Environ.__delitem__ = _delete


def _leave_variables() -> None:
    for name, usual in _USUAL.items():
        setattr(_Environ, name, usual)


def _read(self: Any, name: Any) -> Any:
    reader = _reader()
    counts = reader is not None and isinstance(name, str | bytes)
    try:
        value = _USUAL["__getitem__"](self, name)
    except KeyError:
        if counts:
            _note(os.fsdecode(name), None)
        raise
    if counts:
        _note(os.fsdecode(name), os.fsdecode(value))
    return value


def _go_through(self: Any) -> Iterator[Any]:
    global _taking
    frame = _outside(sys._getframe(1))[0]
    _taking = None if frame is None else (id(frame), frame.f_lasti)
    usual: Iterator[Any] = _USUAL["__iter__"](self)
    return usual


def _set(self: Any, name: Any, value: Any) -> None:
    _assign(name)
    _USUAL["__setitem__"](self, name, value)


def _delete(self: Any, name: Any) -> None:
    _assign(name)
    _USUAL["__delitem__"](self, name)


def _note(name: str, value: str | None) -> None:
    for each in _windows:
        if each.sees():
            each.variable(name, value)


def _assign(name: Any) -> None:
    for each in _windows:
        if isinstance(name, str | bytes):
            each.assigned(os.fsdecode(name))


def _reader() -> FrameType | None:
    """The frame that reads a variable, where it is the user's, and reads this one and not all of them."""
    frame, whole = _outside(sys._getframe(2))
    if frame is None or whole or waiting.is_fetching() or (id(frame), frame.f_lasti) == _taking:
        return None
    packages = tuple(place for each in _windows for place in each.packages)
    return frame if _is_users(frame.f_code.co_filename, packages) else None


def _outside(frame: FrameType | None) -> tuple[FrameType | None, bool]:
    """The first frame that is not of the mapping itself, and whether that takes all that is in it."""
    whole = False
    while frame is not None and frame.f_code.co_filename in _MAPPINGS:
        whole = whole or frame.f_code.co_name in _WHOLE
        frame = frame.f_back
    return frame, whole


@cache
def _is_users(file: str, packages: tuple[str, ...]) -> bool:
    installed = (_OWN, *_installed(), *packages)
    return not (file.startswith("<") or is_below(os.path.realpath(file), installed) or SITES & set(file.split("/")))


@cache
def _installed() -> tuple[str, ...]:
    """Folders of Python, of installed packages, of this one, and of the system."""
    sites = [*site.getsitepackages(), site.getusersitepackages(), *map(sysconfig.get_path, ("stdlib", "platstdlib"))]
    prefixes = {sys.prefix, sys.base_prefix, sys.exec_prefix}
    parts = [
        f"{prefix}/{part}" for prefix in prefixes for part in ("bin", "lib", "share", "include", "etc", "pyvenv.cfg")
    ]
    folders = [*sites, *parts, _OWN]
    return tuple(dict.fromkeys([*_SYSTEM, *folders, *map(os.path.realpath, folders)]))


@cache
def _caches() -> tuple[str, ...]:
    home = Path.home()
    named = [os.environ.get(name, "") for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "MPLCONFIGDIR")]
    ray = [os.environ.get("RAY_TMPDIR", "")]
    return (*(f"{home}/{each}" for each in (*_AT_HOME, *_CACHES)), *filter(None, [*named, *ray]))


def _own_caches() -> tuple[str, ...]:
    """The caches of samples, and of code that this program has compiled."""
    return tuple(map(str, (cache_folder(), *file_cache.folders(__file__))))


def _held() -> set[str]:
    """The files that this process has open for reading, or mapped, apart from libraries and from what it may write."""
    found, code = set(), set()
    for line in Path("/proc/self/maps").read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        _, access, _, _, inode, *named = line.split(maxsplit=5)
        if named and inode != "0":
            found.add(named[0])
            code |= {named[0]} if "x" in access or access[1::2] == "ws" else set()
    return (found - code) | {place for link in Path("/proc/self/fd").iterdir() if (place := _readable(link))}


def _readable(link: Path) -> str | None:
    """The file of a descriptor of this process; None of one that is closed, is no file, or is for writing."""
    try:
        place = str(link.readlink())
        told = Path(f"/proc/self/fdinfo/{link.name}").read_text(encoding="ascii")
    except OSError:
        return None
    flags = int(told.partition("flags:")[2].split()[0], 8)
    return place if place.startswith("/") and flags & (os.O_ACCMODE | os.O_APPEND) == os.O_RDONLY else None


def _absolute(path: Any) -> str | None:
    """None for a descriptor, or what is no path."""
    if isinstance(path, int):
        return None
    return os.path.normpath(Path.cwd() / os.fsdecode(path))


def _sha256(path: str) -> str | None:
    digest = hashlib.sha256()
    try:
        with open(path, "rb") as file:
            while piece := file.read(_PIECE):
                digest.update(piece)
    except OSError:
        return None
    return digest.hexdigest()
