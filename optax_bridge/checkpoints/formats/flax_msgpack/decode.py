"""Flax's msgpack files, read without copying and without trusting any length in them.

The decoder walks a memory map of the file. Nothing is ever allocated for a promise, as every value
takes a byte at least that must be there; arrays are views of the map. Nothing is
constructed but dicts, lists, numbers, text and arrays.
"""

import math
import struct

import ml_dtypes
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
_NUMBERS = {
    0xCA: ">f", 0xCB: ">d",
    0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q",
    0xD0: ">b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q",
}  # fmt: skip
_LENGTHS = {0: ">B", 1: ">H", 2: ">I"}
_PLAIN_DTYPES = [
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
]


def _dtypes() -> dict[str, np.dtype]:
    dtypes = {name: np.dtype(name) for name in _PLAIN_DTYPES}
    for name in dir(ml_dtypes):
        if name.startswith(("bfloat", "float", "int", "uint")):
            dtype = np.dtype(getattr(ml_dtypes, name)) if name not in ("finfo", "iinfo") else None
            if dtype is not None and dtype.name == name:
                dtypes[name] = dtype
    return dtypes


# By name. Objects and records are not among them: reading one would run what the file says.
DTYPES = _dtypes()


def decode(data: bytes | memoryview, place: Place = "msgpack") -> PyTree:
    """Decodes the bytes of one msgpack document."""
    decoder = _Decoder(memoryview(data), place)
    tree = decoder.value((), 0)
    if decoder.at != len(decoder.data):
        raise decoder.error(
            (), "the end of the file", f"{len(decoder.data) - decoder.at} further bytes"
        )
    return tree


class _Decoder:
    """A position in the bytes, and the tree built so far."""

    def __init__(self, data: memoryview, place: Place, start: int = 0, *, is_inner: bool = False):
        self.data, self.place, self.start, self.is_inner = data, place, start, is_inner
        self.at, self.nodes = 0, 0

    def error(
        self, path: tuple[str, ...], expected: str, actual: str, remedy: str = DAMAGED
    ) -> CheckpointError:
        return CheckpointError(
            f"{self.place}, {leaf_name(path) or 'top level'} (byte {self.start + self.at})",
            expected, actual, remedy,
        )  # fmt: skip

    def take(self, count: int, path: tuple[str, ...], what: str) -> memoryview:
        remaining = len(self.data) - self.at
        if count > remaining:
            raise self.error(
                path, f"{count} bytes of {what}", f"{remaining} until the end of the file"
            )
        part = self.data[self.at : self.at + count]
        self.at += count
        return part

    def number(self, code: str, path: tuple[str, ...]) -> Leaf:
        return struct.unpack(code, self.take(struct.calcsize(code), path, "a number"))[0]

    def value(self, path: tuple[str, ...], depth: int) -> PyTree:
        self.nodes += 1
        if depth > MAX_DEPTH or self.nodes > MAX_NODES:
            what = f"nesting deeper than {MAX_DEPTH}" if depth > MAX_DEPTH else "more entries"
            raise self.error(
                path[:8], f"a tree of at most {MAX_DEPTH} levels and {MAX_NODES} entries", what
            )
        head = self.take(1, path, "a value")[0]
        if head < 0x80:
            return head
        if head >= 0xE0:
            return head - 0x100
        if head <= 0x8F:
            return self.mapping(head & 0x0F, path, depth)
        if head <= 0x9F:
            return self.sequence(head & 0x0F, path, depth)
        if head <= 0xBF:
            return self.text(head & 0x1F, path)
        if head in _NUMBERS:
            return self.number(_NUMBERS[head], path)
        if head in (0xC0, 0xC2, 0xC3):
            return {0xC0: None, 0xC2: False, 0xC3: True}[head]
        if 0xC4 <= head <= 0xC6:
            return self.take(self.number(_LENGTHS[head - 0xC4], path), path, "data")
        if 0xC7 <= head <= 0xC9:
            return self.extension(self.number(_LENGTHS[head - 0xC7], path), path)
        if 0xD4 <= head <= 0xD8:
            return self.extension(1 << (head - 0xD4), path)
        if 0xD9 <= head <= 0xDB:
            return self.text(self.number(_LENGTHS[head - 0xD9], path), path)
        if head in (0xDC, 0xDD):
            return self.sequence(self.number(_LENGTHS[head - 0xDB], path), path, depth)
        if head in (0xDE, 0xDF):
            return self.mapping(self.number(_LENGTHS[head - 0xDD], path), path, depth)
        raise self.error(path, "a msgpack value", f"the byte 0x{head:02x}, which starts none")

    def text(self, length: int, path: tuple[str, ...]) -> str:
        part = self.take(length, path, "text")
        try:
            return bytes(part).decode("utf-8")
        except UnicodeDecodeError:
            raise self.error(path, "text", "bytes that are no UTF-8") from None

    def sequence(self, length: int, path: tuple[str, ...], depth: int) -> list[PyTree]:
        return [self.value((*path, str(index)), depth + 1) for index in range(length)]

    def mapping(self, length: int, path: tuple[str, ...], depth: int) -> PyTree:
        tree: dict[str, PyTree] = {}
        for _ in range(length):
            key = self.value(path, depth + 1)
            if not isinstance(key, str) or key in tree:
                what = "the same name twice" if isinstance(key, str) else type(key).__name__
                raise self.error(path, "names, each once", f"{what}: {brief(key)}")
            tree[key] = self.value((*path, key), depth + 1)
        return self.join(tree, path) if CHUNKED in tree else tree

    def extension(self, length: int, path: tuple[str, ...]) -> Leaf:
        code = self.number(">b", path)
        payload = self.take(length, path, "an array")
        if self.is_inner:  # as deep as the file is long, if it were followed
            raise self.error(path, "shape, dtype and data of an array", "an array within an array")
        start = self.start + self.at - length
        inner = _Decoder(payload, self.place, start, is_inner=True)
        if code in (_NDARRAY, _SCALAR):
            array = inner.array(path)
            return array[()] if code == _SCALAR and array.ndim == 0 else array
        if code == _COMPLEX:
            parts = inner.value(path, MAX_DEPTH - 2)
            if isinstance(parts, list) and [type(part) for part in parts] == [float, float]:
                return complex(*parts)
            raise self.error(path, "a complex number", brief(parts))
        raise self.error(
            path, "one of Flax's extension types (array, complex, scalar)", f"type {code}",
            "Only what flax.serialization writes is read; pickled objects never are.",
        )  # fmt: skip

    def array(self, path: tuple[str, ...]) -> np.ndarray:
        triple = self.value(path, MAX_DEPTH - 2)
        if not isinstance(triple, list) or len(triple) != 3 or self.at != len(self.data):
            raise self.error(path, "an array: shape, dtype, data", brief(type(triple).__name__))
        shape, name, buffer = triple
        if not isinstance(buffer, memoryview):
            raise self.error(path, "the bytes of an array", type(buffer).__name__)
        if not is_shape(shape):
            raise self.error(path, "a shape", brief(shape))
        dims: list[int] = shape
        name = bytes(name).decode("latin-1") if isinstance(name, memoryview) else name
        if not isinstance(name, str) or name not in DTYPES:
            raise self.error(
                path, "a numeric dtype", brief(name), "Arrays of objects and records are not read."
            )
        dtype, size = DTYPES[name], math.prod(dims)
        if size * dtype.itemsize != len(buffer):
            raise self.error(
                path, f"{size * dtype.itemsize} bytes for {name}{dims}", f"{len(buffer)}"
            )
        return np.frombuffer(buffer, dtype).reshape(dims)

    def join(self, tree: dict[str, PyTree], path: tuple[str, ...]) -> PyTree:
        """Flax cuts arrays of more than 1 GiB into pieces."""
        shape, chunks = (by_index(tree.get(key)) for key in ("shape", "chunks"))
        pieces_fit = chunks and all(isinstance(c, np.ndarray) and c.ndim == 1 for c in chunks)
        if shape is None or not pieces_fit or len({c.dtype for c in chunks or ()}) != 1:
            raise self.error(path, "a chunked array: its shape, its pieces", brief(list(tree)))
        assert chunks is not None
        if not is_shape(shape):
            raise self.error(path, "the shape of a chunked array", brief(shape))
        size, total = sum(chunk.size for chunk in chunks), math.prod(shape)
        if size != total:
            raise self.error(path, f"{total} elements for shape {shape}", f"{size} in the pieces")
        place = f"{self.place}, {leaf_name(path)}"
        return ChunkedArray(place, tuple(shape), chunks[0].dtype, chunks)
