"""Tensors with a shape and no value: what the code before a stage's border runs on.

A stage runs the user's own `loss(model, batch)` from its first line. Results of other stages are `FakeTensor`s there:
operations on them give others, on torch's "meta" device. Once the border has been reached, a fake tensor that has come over
it has a value, which takes its place in every operation. On any other fake tensor no operation is possible any more. torch's
own `FakeTensor` has a device and no value either, but nothing that could take its place later.

It does not know which values come over a border (`replay.py`), or which may (`survey.py`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch.utils.hooks import RemovableHandle

from orchestrator.errors import PipelineRaised
from orchestrator.numerics.shape_kernels import leave_the_compiler_out

# Functions that read the value of a tensor into Python, or into a shape.
VALUE_READS: Final = frozenset(
    {"item", "__bool__", "__int__", "__float__", "__index__", "__complex__", "tolist", "numpy", "__array__", "nonzero"}
    | {"__contains__", "equal", "allclose", "is_nonzero", "unique", "argwhere", "data_ptr"}
    | {"unique_consecutive", "bincount", "combinations", "nms", "_pack_padded_sequence", "_pad_packed_sequence"}
)
# Functions that ask about a tensor and need no value.
ABOUT: Final = frozenset(
    """
    shape size dim ndim ndimension numel nelement dtype itemsize element_size layout device names
    stride storage_offset is_contiguous requires_grad is_leaf grad_fn result_type
    is_tensor is_floating_point is_complex is_signed is_conj is_neg is_inference is_quantized is_nested is_sparse is_sparse_csr
    is_cpu is_cuda is_meta is_mkldnn is_mps is_xla is_xpu is_hpu is_ipu is_maia is_mtia is_vulkan
    __len__ __repr__ __str__ __format__ __hash__
    """.split()  # noqa: SIM905
)

_ON_GRADIENTS: Final = ("register_hook", "retain_grad")

# An output of a module: its name, which call of it, which tensor of the result. Those of operations: `operation_names.py`.
Key = tuple[str, int, int]


class ValueNeeded(Exception):
    """The code reads a value that another stage has."""


def freezing(name: str) -> PipelineRaised:
    """The refusal of a loss that freezes this parameter."""
    return PipelineRaised(
        f"loss() freezes the parameter {name!r}, and a stage is to know before which of its parameters are trained",
        "have it detach() what the layer computes instead, as a function of step, or set cluster.stages=1",
        code="stages.loss-freezes",
    )


class Watcher(Protocol):
    """Tells a fake tensor its value when it is used."""

    def value_of(self, fake: FakeTensor) -> torch.Tensor | None:
        """The value of the tensor: `fake.value`, once it is set. None before the border. Raises ValueNeeded if it has none
        behind the border."""


class FakeTensor(torch.Tensor):
    """A tensor of another stage. key: which output of a module it is, or the name of a parameter or a buffer, None for another
    result; value: once the border has given it one; walk: the forward pass in which it did."""

    key: Key | str | None
    value: torch.Tensor | None
    walk: object
    watcher: Watcher
    home: torch.device

    @staticmethod
    def of(meta: torch.Tensor, watcher: Watcher, key: Key | str | None = None, home: str = "cpu") -> FakeTensor:
        fake = meta.detach().as_subclass(FakeTensor)
        fake.key, fake.value, fake.walk, fake.watcher, fake.home = key, None, None, watcher, torch.device(home)
        return fake

    @staticmethod
    def like(tensor: torch.Tensor, watcher: Watcher, name: str, home: str = "cpu") -> FakeTensor:
        """A stand-in for a parameter or a buffer. home: the device that it reports."""
        fake = FakeTensor.of(_meta(tensor), watcher, name, home)
        if isinstance(tensor, torch.nn.Parameter):
            fake._is_param = True
        return fake

    @property
    def bare(self) -> torch.Tensor:
        """The tensor on the meta device, as one of torch's own class."""
        with torch._C.DisableTorchFunctionSubclass():
            return self.as_subclass(torch.Tensor)

    def shape_alone(self) -> torch.Tensor:
        """A tensor like `bare` that is no view: torch would keep this one alive for it, and with it a model, in a cycle that
        Python cannot see."""
        with torch._C.DisableTorchFunctionSubclass():
            return _meta(self)

    def __hash__(self) -> int:
        return id(self)

    def __format__(self, spec: str) -> str:
        return repr(self)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        with torch._C.DisableTorchFunctionSubclass():
            shape = tuple(self.size())
        return f"a tensor of shape {shape} that another stage has"

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        leaves, spec = tree_flatten((tuple(args), dict(kwargs or {})))
        fakes = [leaf for leaf in leaves if type(leaf) is FakeTensor]
        name = name_of(func)
        if name not in ABOUT or any(fake.value is not None for fake in fakes):
            try:
                values = {id(fake): fake.watcher.value_of(fake) for fake in fakes}
            except ValueNeeded:
                if not _sets_flag(func, name):
                    raise
                raise freezing(str(fakes[0].key)) from None
            if all(value is not None for value in values.values()):
                args, kwargs = tree_unflatten([values.get(id(leaf), leaf) for leaf in leaves], spec)
                return func(*args, **kwargs)
        first = fakes[0]
        if name in _ON_GRADIENTS:  # the stage that has the tensor does it, and has its gradient
            return RemovableHandle(OrderedDict()) if name == "register_hook" else None
        if name == "device":
            return first.home
        if name in ("is_meta", "is_cpu", "is_cuda"):
            return name == f"is_{first.home.type}"
        if name == "requires_grad":
            return torch.is_grad_enabled() and first.bare.is_floating_point()
        read = read_by(name, args, kwargs or {})
        if any(type(each) is FakeTensor for each in read):
            raise ValueNeeded(f"{name}() reads {first}")
        if read and name in _SELECTIONS:
            return _selected(name, args, kwargs or {})
        return _on_shapes(func, name, leaves, spec, first)


def name_of(func: Callable[..., Any]) -> str:
    """The name of a torch function; of the getter of an attribute, that of the attribute."""
    name = getattr(func, "__name__", str(func))
    return getattr(getattr(func, "__self__", None), "__name__", "") if name == "__get__" else name


def _sets_flag(func: Callable[..., Any], name: str) -> bool:
    """Whether it sets whether a tensor is trained."""
    attribute = getattr(getattr(func, "__self__", None), "__name__", "")
    return name == "requires_grad_" or (name, attribute) == ("__set__", "requires_grad")


def read_by(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """The arguments of a torch function of this name whose values it reads into Python, or into a shape."""
    if name == "__getitem__":
        entries = args[1] if isinstance(args[1], tuple) else (args[1],)
        return [entry for entry in entries if isinstance(entry, torch.Tensor) and entry.dtype in _MASKS]
    if name == "masked_select":
        return [kwargs["mask"] if "mask" in kwargs else args[-1]]
    is_read = name in VALUE_READS or (name in _SIZED_BY_VALUES and _SIZED_BY_VALUES[name](*args, **kwargs))
    return tree_flatten((tuple(args), dict(kwargs)))[0] if is_read else []


# Functions whose result has a shape by values of what they are given, with these arguments.
_SIZED_BY_VALUES: Final[Mapping[str, Callable[..., bool]]] = {
    "where": lambda *args, **kwargs: len(args) + len(kwargs) == 1,
    "one_hot": lambda *args, **kwargs: (args[1] if len(args) > 1 else kwargs.get("num_classes", -1)) == -1,
    "repeat_interleave": lambda *args, **kwargs: (
        kwargs.get("output_size") is None
        and (len(args) + len(kwargs) == 1 or isinstance(kwargs.get("repeats", [*args, None][1]), torch.Tensor))
    ),
}
_MASKS: Final = (torch.bool, torch.uint8)
_SELECTIONS: Final = ("__getitem__", "masked_select")


def _selected(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The elements of a fake tensor that masks select whose values are here: by indices, as the shapes of masks alone tell
    nothing."""
    if name == "masked_select":
        whole, mask = kwargs.get("input", args[0] if args else None), kwargs.get("mask", args[-1] if args else None)
        shape = torch.broadcast_shapes(whole.shape, mask.shape)  # type: ignore[no-untyped-call]
        return whole.expand(shape)[mask.expand(shape)]
    entries: list[Any] = []
    for entry in args[1] if isinstance(args[1], tuple) else (args[1],):
        is_mask = (
            type(entry) is not FakeTensor and isinstance(entry, torch.Tensor) and entry.dtype in _MASKS and entry.dim()
        )
        entries += entry.nonzero(as_tuple=True) if is_mask else [entry]
    leaves, spec = tree_flatten(((args[0], tuple(entries)), {}))
    first = next(leaf for leaf in leaves if type(leaf) is FakeTensor)
    return _on_shapes(torch.Tensor.__getitem__, name, leaves, spec, first)


def writes(name: str) -> bool:
    """Whether a torch function of this name changes its first argument."""
    in_place = name.endswith("_") and not name.endswith("__")
    return (
        in_place or name in ("__setitem__", "__set__", "__delitem__") or (name.startswith("__i") and name in _AUGMENTED)
    )


_AUGMENTED: Final = frozenset(
    f"__i{each}__"
    for each in "add sub mul truediv div floordiv mod pow and or xor lshift rshift".split()  # noqa: SIM905
)


def _on_shapes(func: Callable[..., Any], name: str, leaves: list[Any], spec: Any, first: FakeTensor) -> Any:
    """The operation on shapes alone."""
    if writes(name) and isinstance(leaves[0], torch.Tensor) and type(leaves[0]) is not FakeTensor:
        raise ValueNeeded(f"{name} writes {first} into a tensor that does not depend on parameters")
    out = tree_unflatten(leaves, spec)[1].get("out")
    if isinstance(out, torch.Tensor) and not _is_foreign(out):
        raise ValueNeeded(f"{name}(out=...) writes {first} into a tensor that is there already")
    key = _signature(func, name, leaves, spec, first.home.type)
    recipe = _KNOWN.get(key) if key is not None else None
    if recipe is None:
        recipe = _computed(func, name, leaves, spec, first)
        if key is not None and len(_KNOWN) < _MOST_KNOWN:
            _KNOWN[key] = recipe
    made = [
        leaves[place] if place is not None else _fresh(leaf, first.watcher, str(first.home)) if is_tensor else leaf
        for place, is_tensor, leaf in recipe.leaves
    ]
    return tree_unflatten(made, recipe.spec)


def _is_foreign(tensor: torch.Tensor) -> bool:
    """Whether it stands for a buffer of another stage, which only that stage writes."""
    return type(tensor) is FakeTensor and isinstance(tensor.key, str)


class _Recipe(NamedTuple):
    """The result of an operation on shapes. leaves: of its result: which leaf of the arguments it is, or None; whether it is
    a new tensor; that on the meta device, or a value."""

    leaves: tuple[tuple[int | None, bool, Any], ...]
    spec: Any


def _computed(func: Callable[..., Any], name: str, leaves: list[Any], spec: Any, first: FakeTensor) -> _Recipe:
    leave_the_compiler_out()
    if any(isinstance(leaf, torch.Tensor) and type(leaf) is not FakeTensor and leaf.is_nested for leaf in leaves):
        raise ValueNeeded(f"{name} of {first} and a nested tensor cannot be followed by shapes alone")
    moved = [_moved(leaf) for leaf in leaves]
    args, kwargs = tree_unflatten(moved, spec)
    func = _SHAPED.get(name, func)
    is_cast = _autocast_on(first.home.type) is not None and not writes(name)
    try:
        with torch._C.DisableTorchFunctionSubclass(), torch.no_grad():
            out = _as_cast(func, moved, spec, first.home) if is_cast else None
            if out is None:
                out = func(*args, **kwargs)
    except (RuntimeError, NotImplementedError) as error:
        why = str(error).partition(".")[0]
        raise ValueNeeded(f"{name} of {first} cannot be followed by its shape alone: {why}") from None
    given = {id(meta): i for i, (meta, leaf) in enumerate(zip(moved, leaves, strict=True)) if type(leaf) is FakeTensor}
    found, result_spec = tree_flatten(out)
    made = [(given.get(id(leaf)), isinstance(leaf, torch.Tensor), leaf) for leaf in found]
    return _Recipe(tuple(made), result_spec)


def _as_cast(func: Callable[..., Any], moved: Sequence[Any], spec: Any, home: torch.device) -> Any:
    """The result on shapes as autocast has it computed on that device. None where torch knows the shapes of no kernel for it:
    then types are those without autocast, as far as the proof of the cut lets them pass."""
    args, kwargs = tree_unflatten([_Autocast.of(leaf, home) for leaf in moved], spec)
    try:
        found, result_spec = tree_flatten(func(*args, **kwargs))
    except (RuntimeError, NotImplementedError):
        if name_of(func) not in _RECURRENT:
            return None
        lowered = [leaf.to(_autocast_on(home.type)) if _is_float(leaf) else leaf for leaf in moved]
        args, kwargs = tree_unflatten(lowered, spec)
        return func(*args, **kwargs)
    return tree_unflatten([leaf.meta if type(leaf) is _Autocast else leaf for leaf in found], result_spec)


def _is_float(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.dtype is torch.float32


def _autocast_on(device: str) -> torch.dtype | None:
    """The type in which autocast has products computed on this kind of device; None if it is off."""
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None


class _Autocast(torch.Tensor):
    """A shape that autocast takes for a tensor of its device: of those on the meta device it casts none."""

    meta: torch.Tensor

    @staticmethod
    def of(leaf: Any, device: torch.device) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        place: dict[str, Any] = {"strides": leaf.stride(), "storage_offset": leaf.storage_offset()}
        cast = _Autocast._make_wrapper_subclass(_Autocast, leaf.size(), dtype=leaf.dtype, device=device, **place)
        cast.meta = leaf
        return cast

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        leaves, spec = tree_flatten((tuple(args), dict(kwargs or {})))
        moved = [leaf.meta if type(leaf) is _Autocast else _moved(leaf) for leaf in leaves]
        on_shapes, options = tree_unflatten(moved, spec)
        found, result_spec = tree_flatten(func(*on_shapes, **options))
        given = {id(meta): leaf for meta, leaf in zip(moved, leaves, strict=True) if type(leaf) is _Autocast}
        if torch.Tag.inplace_view in func.tags:
            with torch._C._DisableTorchDispatch():
                func(*args, **(kwargs or {}))
        home = next(iter(given.values())).device
        made = [given[id(leaf)] if id(leaf) in given else cls.of(leaf, home) for leaf in found]
        return tree_unflatten(made, result_spec)


def _histc(input: torch.Tensor, bins: int = 100, *_: object, **__: object) -> torch.Tensor:
    return input.new_empty(bins)


def _grouped_mm(
    rows: torch.Tensor, matrices: torch.Tensor, *_: object, out_dtype: torch.dtype | None = None, **__: object
) -> torch.Tensor:
    """Experts have a matrix each, for a group of the rows."""
    if (rows.dim(), matrices.dim()) != (2, 3):
        raise NotImplementedError("rows are given by one matrix for each group")
    return rows.new_empty(len(rows), matrices.shape[-1], dtype=out_dtype or rows.dtype)


# In the place of functions that torch refuses on shapes alone, since on a GPU they vary, or want bfloat16.
_SHAPED: Final[Mapping[str, Callable[..., Any]]] = {
    "histc": _histc,
    "_grouped_mm": _grouped_mm,
    "grouped_mm": _grouped_mm,
}
# A GPU has kernels of them whose shapes torch does not know; autocast has all of it in its type there.
_RECURRENT: Final = ("gru", "gru_cell", "lstm", "lstm_cell", "rnn_tanh", "rnn_relu")
# By operation and signature: torch computes shapes in Python, which takes a hundred times as long.
_KNOWN: dict[Any, _Recipe] = {}
_MOST_KNOWN: Final = 50_000
_RESHAPING: Final = frozenset(
    f"{each}_"
    for each in ("resize", "resize_as", "t", "squeeze", "unsqueeze", "transpose", "swapaxes", "swapdims", "set")
) | {"as_strided_", "__set__"}
# Values of a call that are compared as they are.
PLAIN: Final = (type(None), bool, int, float, complex, str, torch.dtype, torch.device, torch.Size, torch.layout)


def _signature(func: Callable[..., Any], name: str, leaves: list[Any], spec: Any, device: str) -> Any:
    """None where the operation may depend on more than what is compared here, or changes the shape of a tensor itself. device:
    the kind of that for whose tensors fake ones stand."""
    if name in _RESHAPING:
        return None
    found: list[Any] = []
    with torch._C.DisableTorchFunctionSubclass():
        for leaf in leaves:
            if isinstance(leaf, torch.Tensor):
                found.append(form_of(leaf))
            elif isinstance(leaf, PLAIN):
                found.append((type(leaf), leaf))
            elif isinstance(leaf, slice) and all(
                isinstance(each, int | None) for each in (leaf.start, leaf.stop, leaf.step)
            ):
                found.append((slice, leaf.start, leaf.stop, leaf.step))
            elif leaf is Ellipsis:
                found.append(Ellipsis)
            else:
                return None
    try:
        key = (func, str(spec), torch.get_default_dtype(), device, _autocast_on(device), *found)
        hash(key)
    except TypeError:
        return None
    return key


def form_of(tensor: torch.Tensor) -> Any:
    """All that shapes alone depend on; to be called without the functions of a subclass."""
    if not is_dense(tensor):
        return False, tuple(tensor.size()), tensor.layout, tensor.dtype
    form = tuple(tensor.size()), tuple(tensor.stride()), tensor.dtype, tensor.storage_offset()
    return type(tensor) is FakeTensor, *form


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether its elements lie in one memory with strides: not those of sparse and nested tensors."""
    return tensor.layout is torch.strided and not tensor.is_nested


def _fresh(result: torch.Tensor, watcher: Watcher, home: str) -> FakeTensor:
    with torch._C.DisableTorchFunctionSubclass():
        return FakeTensor.of(result.as_subclass(torch.Tensor), watcher, home=home)


def _moved(leaf: Any) -> Any:
    if type(leaf) is FakeTensor:
        return leaf.bare
    if isinstance(leaf, torch.Tensor):
        return _meta(leaf)
    return torch.device("meta") if isinstance(leaf, torch.device) else leaf


def _meta(tensor: torch.Tensor) -> torch.Tensor:
    if not is_dense(tensor):
        return torch.empty(tensor.size(), dtype=tensor.dtype, device="meta")
    return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="meta")
