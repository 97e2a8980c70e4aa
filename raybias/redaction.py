"""Detect passwords and tokens in URLs, and replace them in text."""

from __future__ import annotations

import re
from typing import Final

# Repetitions are bounded: a long text without any URL would take the square of its length.
#: What stands before an `@`: over HTTP anything, since a user's name there can be a token;
#: elsewhere a password. Azure's `abfs://container@account` and a database's user are no secrets.
_USER: Final = re.compile(
    r"(?i)(https?://)[^/\s?#]*@|([a-z][a-z0-9+.-]{0,30}://)[^/\s?#:]*:[^/\s?#]*@"
)
_OPTION: Final = re.compile(
    r"(?i)([?&][\w.-]{0,99}(?:token|passw|secret|signature|credential|(?:api|access|account)[_-]?key)"
    r"[\w.-]{0,99}=)[^&\s'\"]+"
)
_HIDDEN: Final = "***"


def redact(text: str) -> str:
    """Replace the user, password and token-like options of every URL in a text by `***`."""
    hidden = _USER.sub(lambda found: f"{found[1] or found[2]}{_HIDDEN}@", text)
    return _OPTION.sub(rf"\g<1>{_HIDDEN}", hidden)


def holds_secret(text: str) -> bool:
    """Return whether a text has a URL with a password or token in it."""
    return redact(text) != text
