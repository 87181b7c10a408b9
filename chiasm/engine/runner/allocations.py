"""What a computation would allocate, found out without computing it.

On a CPU the biggest step takes seconds to minutes, and start-up must not. Tensors are made as they would be, but what
takes time to compute is left as it comes: memory that nobody touches costs next to nothing. What isn't known here is
computed, so that a result's shape is always right.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_SMALL_BYTES = 2**16  # such results are computed: they may be indices that others depend on
_FEW_SCORES = 2**20
_aten, _c10d, _mkldnn = torch.ops.aten, torch.ops.c10d, torch.ops.mkldnn


class AllocationCounter(TorchDispatchMode):
    """Counts the bytes of tensors that are made while it is active, and leaves out costly computations.

    What operators take for themselves while they run is not seen.

    Args:
        is_computing: whether everything is computed all the same.

    Attributes:
        live_bytes: of tensors that still exist.
        peak_bytes: most of these at a time.
    """

    def __init__(self, *, is_computing: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self.live_bytes = 0
        self.peak_bytes = 0
        self._is_computing = is_computing
        self._sizes: dict[int, int] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Torch's hook: to keep its compiler away from this class it would import it, which takes seconds."""
        return False

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Make what the operator makes."""
        kwargs = kwargs or {}
        result = None if self._is_computing else _left_out(func, args, kwargs)
        if result is None:
            result = func(*args, **kwargs)
        for tensor in _tensors(result):
            self._take_in(tensor)
        return result

    def _take_in(self, tensor: Tensor) -> None:
        if tensor.layout != torch.strided:
            return
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._sizes:
            return
        self._sizes[key] = storage.nbytes()
        self.live_bytes += storage.nbytes()
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        weakref.finalize(storage, self._let_go, key).atexit = False

    def _let_go(self, key: int) -> None:
        self.live_bytes -= self._sizes.pop(key)


def _tensors(result: Any) -> Iterator[Tensor]:
    if isinstance(result, Tensor):
        yield result
    elif isinstance(result, (tuple, list)):
        for one in result:
            yield from _tensors(one)


def _left_out(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """A result of the right shape and type; None if the operator is to be computed."""
    packet = func.overloadpacket
    if packet == _c10d.allreduce_:
        # All ranks leave out the same sums; one number is exchanged in place of each, since its end is waited for.
        _, work = func([tensor.new_empty(1) for tensor in args[0]], *args[1:], **kwargs)
        return args[0], work
    is_pointwise = torch.Tag.pointwise in func.tags
    if "out" in kwargs:
        can_leave = (is_pointwise or packet == _aten.sparse_sampled_addmm) and _is_costly(kwargs["out"])
        return kwargs["out"] if can_leave else None
    if func._schema.is_mutable:
        target = args[0] if args else None
        return target if isinstance(target, Tensor) and _is_costly(target) else None
    rule = _RULES.get(packet)
    if rule is None and is_pointwise and packet not in _COMPARISONS:
        rule = _pointwise
    return None if rule is None else rule(*args, **kwargs)


def _is_costly(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.numel() * tensor.element_size() > _SMALL_BYTES


def _made(shape: Sequence[int], dtype: torch.dtype, *, is_wanted: bool = True) -> Tensor | None:
    """An untouched tensor; None if there is little to save."""
    size = reduce(lambda product, length: product * length, shape, dtype.itemsize)
    if not is_wanted or size <= _SMALL_BYTES:
        return None
    made = torch.empty(tuple(shape), dtype=dtype)
    if made.numel() <= _FEW_SCORES and len(shape) == 2:
        made.zero_()  # they may be scores that experts are chosen by: ties, so that all rows choose the same
    return made


def _broadcast(shapes: Sequence[Sequence[int]]) -> list[int]:
    """The common shape. Torch's own function for it imports half a second's worth of algebra."""
    lengths = zip_longest(*(reversed(shape) for shape in shapes), fillvalue=1)
    return [next((length for length in along if length != 1), 1) for along in lengths][::-1]


def _pointwise(*args: Any, **_: Any) -> Tensor | None:
    tensors = [arg for arg in args if isinstance(arg, Tensor)]
    dtype = reduce(torch.promote_types, (one.dtype for one in tensors if one.dim() or len(tensors) == 1))
    shape = _broadcast([one.shape for one in tensors])
    return _made(shape, dtype, is_wanted=dtype.is_floating_point)


def _linear(x: Tensor, weight: Tensor, *_: Any, **__: Any) -> Tensor | None:
    return _made((*x.shape[:-1], weight.shape[0]), x.dtype)


def _linear_times(x: Tensor, factor: Tensor, weight: Tensor, *_: Any) -> Tensor | None:
    del factor
    return _linear(x, weight)


def _matmul(left: Tensor, right: Tensor) -> Tensor | None:
    if left.dim() < 2 or right.dim() < 2:
        return None
    batch = _broadcast((left.shape[:-2], right.shape[:-2]))
    return _made((*batch, left.shape[-2], right.shape[-1]), left.dtype)


def _attention(q: Tensor, k: Tensor, v: Tensor, *_: Any, **__: Any) -> Tensor | None:
    """[..., H, n, D], in memory as [..., n, H, D]."""
    del k
    *batch, heads, rows, _size = q.shape
    made = _made((*batch, rows, heads, v.shape[-1]), q.dtype)
    return None if made is None else made.transpose(-3, -2)


def _bags(weight: Tensor, indices: Tensor, offsets: Tensor, *args: Any, **kwargs: Any) -> Any:
    """[bags, D] and three more that nobody reads; the offsets include the end."""
    del indices, args, kwargs
    made = _made((len(offsets) - 1, weight.shape[1]), weight.dtype)
    return None if made is None else (made, *[offsets.new_empty(0)] * 3)


def _same(x: Tensor, *_: Any, **__: Any) -> Tensor | None:
    return _made(x.shape, x.dtype, is_wanted=x.dtype.is_floating_point)


def _converted(x: Tensor, *args: Any, **kwargs: Any) -> Tensor | None:
    dtype = next((arg for arg in (*args, *kwargs.values()) if isinstance(arg, torch.dtype)), x.dtype)
    return _made(x.shape, dtype, is_wanted=dtype.is_floating_point and x.dtype != dtype)


def _mean(x: Tensor, dims: Sequence[int] | None = None, keepdim: bool = False, **_: Any) -> Tensor | None:
    if dims is None:
        return None
    reduced = {dim % x.dim() for dim in dims}
    kept = [1 if dim in reduced else length for dim, length in enumerate(x.shape) if keepdim or dim not in reduced]
    # Small as the result may be, what it is made of is not.
    return torch.empty(kept, dtype=x.dtype) if x.dtype.is_floating_point and _is_costly(x) else None


def _joined(tensors: Sequence[Tensor], dim: int = 0) -> Tensor | None:
    first = max(tensors, key=Tensor.dim)
    shape = list(first.shape)
    shape[dim] = sum(one.shape[dim] for one in tensors if one.dim() == first.dim())
    return _made(shape, first.dtype, is_wanted=first.dtype.is_floating_point)


def _stacked(tensors: Sequence[Tensor], dim: int = 0) -> Tensor | None:
    shape = list(tensors[0].shape)
    shape.insert(dim % (len(shape) + 1), len(tensors))
    return _made(shape, tensors[0].dtype, is_wanted=tensors[0].dtype.is_floating_point)


def _selected(x: Tensor, dim: int, index: Tensor) -> Tensor | None:
    shape = list(x.shape)
    shape[dim] = len(index)
    return _made(shape, x.dtype, is_wanted=x.dtype.is_floating_point)


def _ones(size: Sequence[int], *, dtype: torch.dtype | None = None, **_: Any) -> Tensor | None:
    return _made(size, torch.bool, is_wanted=dtype == torch.bool)


_COMPARISONS = frozenset(
    getattr(_aten, name) for name in ("lt", "le", "gt", "ge", "eq", "ne", "isnan", "isinf", "logical_not")
)

_RULES: dict[Any, Callable[..., Any]] = {
    _aten.linear: _linear,
    _mkldnn._linear_pointwise: lambda x, second, *rest: (
        _linear_times(x, second, *rest) if isinstance(rest[0], Tensor) and rest[0].dim() == 2 else _linear(x, second)
    ),
    _aten.matmul: _matmul,
    _aten.bmm: _matmul,
    _aten.scaled_dot_product_attention: _attention,
    _aten.embedding_bag: _bags,
    _aten.layer_norm: _same,
    _aten.rms_norm: _same,
    _aten.softmax: _same,
    _aten.clone: _same,
    _aten.to: _converted,
    _aten.mean: _mean,
    _aten.cat: _joined,
    _aten.stack: _stacked,
    _aten.index_select: _selected,
    _aten.ones: _ones,
}
"""By operator. Anything that isn't here and isn't element by element is computed."""
