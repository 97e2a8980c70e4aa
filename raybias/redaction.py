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
#: What stands behind the `?` of a URL: any option can be a key, but for those that never are.
_QUERY: Final = re.compile(
    r"(?i)([a-z][a-z0-9+.-]{0,30}://[^\s?'\"<>]{0,500}\?)([^\s'\"<>]{1,4000})"
)
_HARMLESS: Final = frozenset(
    {"allow_bucket_creation", "allow_bucket_deletion", "anonymous", "api-version",
     "application_name", "buffer_size", "charset", "connect_timeout", "deployment", "directory",
     "download", "driver", "endpoint_override", "expand", "limit", "model", "offset", "page",
     "project_id", "recursive", "region", "replication", "retry_limit_seconds", "revision",
     "scheme", "sslmode", "sslrootcert", "timeout", "tls_verify_certificates", "version",
     "view"}
)  # fmt: skip
#: Behind a `?` without a name: what could be a key, and no pattern of files.
_BARE: Final = re.compile(r"[\w-]{16,}")
#: The name of an option or setting that is a key: `--api-key`, `backbones.0.token`. A file of one
#: (`--token-file`) and a count (`--max-tokens`) are none.
_KEY_NAME: Final = re.compile(
    r"(?i)(?:^|[-_.])(?:token|password|passwd|secret|credentials?|(?:(?:api|access|account)[-_]?)?key)$"
)
_HIDDEN: Final = "***"
#: Keys that this process has read, and what is too short to be one.
_SECRETS: Final[set[str]] = set()
_SHORTEST: Final = 8


def secret(value: str) -> str:
    """Remember a key, so that `redact` replaces it wherever it stands; returns it."""
    if len(value) >= _SHORTEST:
        _SECRETS.add(value)
    return value


def without_secrets(text: str) -> str:
    """Replace every key that this process has read by `***`."""
    for value in sorted(_SECRETS, key=len, reverse=True):
        text = text.replace(value, _HIDDEN)
    return text


def redact(text: str) -> str:
    """Replace keys by `***`: those that were read, and the user, password and options of URLs."""
    return _redact_urls(without_secrets(text))


def redact_command(command: str) -> str:
    """Replace keys in a command line by `***`: as `redact`, and the values of options for keys."""
    words = redact(command).split(" ")
    for place, word in enumerate(words):
        name, equals, _ = word.partition("=")
        if not _KEY_NAME.search(name):
            continue
        if equals:
            words[place] = f"{name}={_HIDDEN}"
        elif name.startswith("-") and place + 1 < len(words):
            words[place + 1] = _HIDDEN
    return " ".join(words)


def _redact_urls(text: str) -> str:
    hidden = _USER.sub(lambda found: f"{found[1] or found[2]}{_HIDDEN}@", text)
    hidden = _QUERY.sub(_public_options, hidden)
    return _OPTION.sub(rf"\g<1>{_HIDDEN}", hidden)


def _public_options(found: re.Match[str]) -> str:
    options = (option.partition("=") for option in found[2].split("&"))
    shown = (
        f"{name}{equals}{value if name.lower() in _HARMLESS else _HIDDEN}"
        if equals
        else (_HIDDEN if _BARE.fullmatch(name) else name)
        for name, equals, value in options
    )
    return found[1] + "&".join(shown)


def holds_secret(text: str) -> bool:
    """Return whether a text has a URL with a password or token in it."""
    return _redact_urls(text) != text
