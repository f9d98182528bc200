"""Messages as objects for `--json`, and amounts as words for people."""

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from kvd.limits import GIB, KIB, MIB

Value = None | bool | int | float | str | list | dict


def as_object(message: Message) -> dict[str, Value]:
    """Return every field that this tool knows, absent ones with their zero; bytes as hex.

    Unlike protobuf's own JSON, 64-bit numbers stay numbers, and no field is ever left out.
    """
    return {
        field.name: _value(field, getattr(message, field.name))
        for field in message.DESCRIPTOR.fields
    }


def _value(field: FieldDescriptor, value: object) -> Value:
    if field.is_repeated:
        return [_single(field, each) for each in value]  # type: ignore[union-attr]
    return _single(field, value)


def _single(field: FieldDescriptor, value: object) -> Value:
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        return as_object(value)  # type: ignore[arg-type]
    if field.type == FieldDescriptor.TYPE_BYTES:
        return value.hex()  # type: ignore[union-attr]
    if field.type == FieldDescriptor.TYPE_ENUM:
        known = field.enum_type.values_by_number.get(value)
        return known.name if known else value  # type: ignore[return-value]
    if value == float("inf"):
        return None  # JSON has no word for it: the last bucket of a histogram has no upper bound.
    return value  # type: ignore[return-value]


def human(size_bytes: float) -> str:
    """Return a size with one decimal in the unit that leaves it at least 1."""
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size_bytes >= unit:
            return f"{size_bytes / unit:.1f} {name}"
    return f"{size_bytes:.0f} B"


def human_time(milliseconds: float) -> str:
    """Return a span of time in its two largest units."""
    seconds = milliseconds / 1000
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, seconds = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {seconds} s"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours} h {minutes} min"
    days, hours = divmod(hours, 24)
    return f"{days} d {hours} h"
