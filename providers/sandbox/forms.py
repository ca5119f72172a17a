"""Reads multipart/form-data (RFC 7578), as the fakes need it: small, whole, byte for byte."""

import hashlib
import re
from dataclasses import dataclass, field
from email import message_from_bytes
from email.message import Message
from typing import Any

_BOUNDARY = re.compile(r"(?i)^multipart/form-data;.*\bboundary=\"?([^\";]{1,70})\"?")


@dataclass(slots=True)
class Form:
    """Fields and files in the order they came, each under its name."""

    fields: dict[str, list[str]] = field(default_factory=dict)
    files: dict[str, list[bytes]] = field(default_factory=dict)

    def get(self, name: str) -> str | None:
        """The first value of a field, if it was sent."""
        return next(iter(self.fields.get(name, [])), None)

    def shown(self) -> dict[str, Any]:
        """As the bill shows it: a file by its size and digest."""
        shown: dict[str, Any] = {
            name: values[0] if len(values) == 1 else values for name, values in self.fields.items()
        }
        for name, contents in self.files.items():
            shown[name] = [{"bytes": len(one), "sha256": hashlib.sha256(one).hexdigest()} for one in contents]
        return shown


def read(content_type: str, body: bytes) -> Form | None:
    """The form, or None when the body is not one, whole to its last boundary."""
    found = _BOUNDARY.match(content_type)
    if found is None:
        return None
    line = b"\r\n--" + found.group(1).encode()
    pieces = (b"\r\n" + body).split(line)
    if len(pieces) < 2 or not pieces[-1].startswith(b"--"):
        return None
    form = Form()
    for piece in pieces[1:-1]:
        head, separator, content = piece.removeprefix(b"\r\n").partition(b"\r\n\r\n")
        part = message_from_bytes(head + b"\r\n\r\n")
        name = _parameter(part, "name")
        if not separator or name is None:
            return None
        if _parameter(part, "filename") is not None:
            form.files.setdefault(name, []).append(content)
        else:
            form.fields.setdefault(name, []).append(content.decode("utf-8", "replace"))
    return form


def _parameter(part: Message, name: str) -> str | None:
    value = part.get_param(name, header="content-disposition")
    return value if isinstance(value, str) else None
