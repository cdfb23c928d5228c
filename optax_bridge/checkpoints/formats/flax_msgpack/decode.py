"""Flax's msgpack files, read without copying and without trusting any length in them.

The decoder walks a memory map of the file. Nothing is ever allocated for a promise, as every value
takes a byte at least that must be there; arrays are views of the map. Nothing is
constructed but dicts, lists, numbers, text and arrays.
"""

import math
import struct

import ml_dtypes as ml_dtypes  # whose names NumPy knows from then on
import numpy as np

from optax_bridge.checkpoints.errors import DAMAGED, CheckpointError, Place, brief
from optax_bridge.checkpoints.lazy import ChunkedArray, is_shape
from optax_bridge.metadata.paths import by_index, leaf_name
from optax_bridge.metadata.trees import Leaf, PyTree

MAX_DEPTH = 100
# Containers, numbers and text; a checkpoint of a large model has some ten thousand.
MAX_NODES = 2_000_000
CHUNKED = "__msgpack_chunked_array__"

_NDARRAY, _COMPLEX, _SCALAR = 1, 2, 3
_NUMBERS = dict(zip(range(0xCA, 0xD4), "fdBHIQbhiq", strict=True))
_CONSTANTS = {0xC0: None, 0xC2: False, 0xC3: True}
# The first byte of a value -> the method that reads it, and its length or the form of that.
_VALUES: dict[int, tuple[str, int | str]] = {
    **{0x80 + length: ("mapping", length) for length in range(16)},
    **{0x90 + length: ("sequence", length) for length in range(16)},
    **{0xA0 + length: ("text", length) for length in range(32)},
    **{0xC4 + index: ("take", form) for index, form in enumerate("BHI")},
    **{0xC7 + index: ("extension", form) for index, form in enumerate("BHI")},
    **{0xD4 + power: ("extension", 1 << power) for power in range(5)},
    **{0xD9 + index: ("text", form) for index, form in enumerate("BHI")},
    **{0xDC + index: ("sequence", form) for index, form in enumerate("HI")},
    **{0xDE + index: ("mapping", form) for index, form in enumerate("HI")},
}
# By name. Objects and records are not among them: reading one would run what the file says.
_NAMES = (
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64 "
    "complex128 bfloat16 int4 uint4 float8_e4m3fn float8_e5m2 float8_e4m3b11fnuz float8_e4m3fnuz "
    "float8_e5m2fnuz"
)
DTYPES = {name: np.dtype(name) for name in _NAMES.split()}


def decode(data: bytes | memoryview, place: Place = "msgpack") -> PyTree:
    """Decodes the bytes of one msgpack document."""
    decoder = _Decoder(memoryview(data), place)
    tree = decoder.value()
    if decoder.at != len(data):
        raise decoder.error("the end of the file", f"{len(data) - decoder.at} further bytes")
    return tree


class _Decoder:
    """A position in the bytes and the names of the levels around it."""

    def __init__(self, data: memoryview, place: Place):
        self.data, self.place, self.path = data, place, list[str]()
        self.at = self.depth = self.nodes = 0
        self.is_in_array = False

    def error(self, expected: str, actual: object, remedy: str = DAMAGED) -> CheckpointError:
        name = leaf_name(tuple(self.path)) or "top level"
        return CheckpointError(f"{self.place}, {name} (byte {self.at})", expected, actual, remedy)

    def take(self, count: int, content: str = "data") -> memoryview:
        remaining = len(self.data) - self.at
        if count > remaining:
            raise self.error(f"{count} bytes of {content}", f"{remaining} until the file ends")
        self.at += count
        return self.data[self.at - count : self.at]

    def number(self, form: str) -> Leaf:
        return struct.unpack(f">{form}", self.take(struct.calcsize(form), "a number"))[0]

    def value(self) -> PyTree:
        self.nodes += 1
        if self.depth > MAX_DEPTH or self.nodes > MAX_NODES:
            del self.path[8:]
            expected = f"a tree of at most {MAX_DEPTH} levels and {MAX_NODES} entries"
            raise self.error(expected, f"level {self.depth}, entry {self.nodes}")
        head = self.take(1, "a value")[0]
        if head < 0x80 or head >= 0xE0:
            return head if head < 0x80 else head - 0x100
        if head in _NUMBERS:
            return self.number(_NUMBERS[head])
        if head in _CONSTANTS:
            return _CONSTANTS[head]
        if head not in _VALUES:
            raise self.error("a msgpack value", f"0x{head:02x}, a byte that starts none")
        read, length = _VALUES[head]
        return getattr(self, read)(self.number(length) if isinstance(length, str) else length)

    def within(self, *names: str) -> PyTree:
        """A value one level deeper, which is of these names."""
        self.depth += 1
        self.path += names
        value = self.value()
        self.depth -= 1
        del self.path[len(self.path) - len(names) :]
        return value

    def text(self, length: int) -> str:
        try:
            return str(self.take(length, "text"), "utf-8")
        except UnicodeDecodeError:
            raise self.error("text", "bytes that are not valid UTF-8") from None

    def sequence(self, length: int) -> list[PyTree]:
        return [self.within(*([] if self.is_in_array else [str(index)])) for index in range(length)]

    def mapping(self, length: int) -> PyTree:
        tree: dict[str, PyTree] = {}
        for _ in range(length):
            name = self.within()
            if not isinstance(name, str) or name in tree:
                raise self.error("names, each once", brief(name))
            tree[name] = self.within(name)
        return self.joined(tree) if CHUNKED in tree else tree

    def extension(self, length: int) -> Leaf:
        code = self.number("b")
        if self.is_in_array:  # as deep as the file is long, if it were followed
            raise self.error("shape, dtype and data of an array", "an array within an array")
        if code not in (_NDARRAY, _COMPLEX, _SCALAR):
            raise self.error(
                "one of Flax's extension types (array, complex, scalar)", f"type {code}",
                "Only the types that flax.serialization writes are read, never pickled objects.",
            )  # fmt: skip
        end = self.at + length
        self.is_in_array = True
        content = self.within()
        self.is_in_array = False
        if self.at != end:
            raise self.error(f"{length} bytes of an array", f"{self.at - end + length}")
        if code == _COMPLEX:
            if not isinstance(content, list) or [*map(type, content)] != [float, float]:
                raise self.error("a complex number", content)
            return complex(*content)
        array = self.array(content)
        return array[()] if code == _SCALAR and array.ndim == 0 else array

    def array(self, content: PyTree) -> np.ndarray:
        match content:
            case [shape, str(name), memoryview() as data] if is_shape(shape) and name in DTYPES:
                size = math.prod(shape) * DTYPES[name].itemsize
            case _:
                raise self.error("an array: a shape, a numeric dtype, bytes", content)
        if size != len(data):
            raise self.error(f"{size} bytes for {name}{shape}", f"{len(data)}")
        return np.frombuffer(data, DTYPES[name]).reshape(shape)

    def joined(self, tree: dict[str, PyTree]) -> ChunkedArray:
        """Flax cuts arrays of more than 1 GiB into pieces."""
        shape, pieces = (by_index(tree.get(key)) for key in ("shape", "chunks"))
        are_flat = pieces and all(isinstance(p, np.ndarray) and p.ndim == 1 for p in pieces)
        if not pieces or not are_flat or len({piece.dtype for piece in pieces}) != 1:
            raise self.error("a chunked array: its shape, its pieces", list(tree))
        if shape is None or not is_shape(shape):
            raise self.error("the shape of a chunked array", shape)
        size, total = sum(piece.size for piece in pieces), math.prod(shape)
        if size != total:
            raise self.error(f"{total} elements for shape {shape}", f"{size} in the pieces")
        place = f"{self.place}, {leaf_name(tuple(self.path))}"
        dims = tuple(shape)
        return ChunkedArray(
            place, dims, pieces[0].dtype, lambda: np.concatenate(pieces).reshape(dims), pieces
        )
