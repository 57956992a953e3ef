"""What a client may call a file: one plain name, never a path."""

import unicodedata

MAX_NAME_BYTES = 255  # what file systems take


def check_file_name(name: str) -> str:
    """The name. Raises ValueError for one that could be anything but a file of its folder."""
    if not name:
        raise ValueError("must not be empty")
    if len(name.encode()) > MAX_NAME_BYTES:
        raise ValueError(f"must not be longer than {MAX_NAME_BYTES} bytes")
    if any(unicodedata.category(char) == "Cc" for char in name):
        raise ValueError("must not hold control characters")
    if "/" in name or "\\" in name:
        raise ValueError("a plain file name holds no separators")
    if name.startswith("."):
        raise ValueError("must not begin with a dot")
    if ".." in name:
        raise ValueError("must not hold '..'")
    return name
