# pyright: strict
"""REQUIRED: the value of a field that must be set before the config is used."""

from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar, Union

T = TypeVar("T")


def _refuses(operation: str) -> Any:
    def method(self: object, *operands: object) -> NoReturn:
        raise TypeError(
            f"a required field is not set: {operation} was applied to REQUIRED. Set it first."
        )

    return method


class RequiredFieldValue:
    """The class of `REQUIRED`. Ask whether a field is set by `isinstance(v, RequiredFieldValue)`.

    Whatever else is done with the value raises TypeError, since a field was forgotten; reading an
    attribute raises AttributeError, so that `hasattr` is False.
    """

    def __deepcopy__(self, memo: dict[int, object]) -> "RequiredFieldValue":
        return self

    def __copy__(self) -> "RequiredFieldValue":
        return self

    def __reduce__(self) -> str:
        return "REQUIRED"  # pickle looks the name up in this module

    def __repr__(self) -> str:
        return "REQUIRED"

    def __bool__(self) -> bool:
        return False

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(
            f"a required field is not set: REQUIRED has no attribute {name!r}. Set the field first."
        )

    __add__ = __radd__ = _refuses("+")
    __sub__ = __rsub__ = _refuses("-")
    __mul__ = __rmul__ = _refuses("*")
    __truediv__ = __rtruediv__ = _refuses("/")
    __floordiv__ = __rfloordiv__ = _refuses("//")
    __mod__ = __rmod__ = _refuses("%")
    __pow__ = __rpow__ = _refuses("**")
    __neg__ = _refuses("unary -")
    __pos__ = _refuses("unary +")
    __abs__ = _refuses("abs()")
    __lt__ = _refuses("<")
    __le__ = _refuses("<=")
    __gt__ = _refuses(">")
    __ge__ = _refuses(">=")
    __getitem__ = _refuses("[]")
    __setitem__ = _refuses("[]=")
    __iter__ = _refuses("iter()")
    __contains__ = _refuses("in")
    __len__ = _refuses("len()")
    __call__ = _refuses("a call")
    __int__ = _refuses("int()")
    __float__ = _refuses("float()")


if TYPE_CHECKING:
    # When a config is made use of, its required fields are set: `Required[int]` is an int then.
    REQUIRED: Any
    Required = Annotated[T, RequiredFieldValue]
else:
    REQUIRED = RequiredFieldValue()
    Required = Union[T, RequiredFieldValue]  # noqa: UP007 (it takes a parameter: Required[int])
