"""Try a chat template in a process of its own before it is rendered here.

A template is a program that comes with a model. Its sandbox keeps it from files and networks, and
bounds neither its time nor its memory.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from raybias.errors import ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_SECONDS: Final = 5
#: A busy machine gives a process little of its time.
_PATIENCE_S: Final = 120
_MEMORY: Final = 2**30
#: Characters that a template may add to what the messages hold.
_ADDS: Final = 2**18
_TOO_MUCH: Final = 3
#: What transformers does with a template, as far as time and memory go; other faults are found
#: where the template is rendered.
_TRIAL: Final = f"""
import json, sys
try:
    import resource
    for kind, most in ((resource.RLIMIT_CPU, {_SECONDS}), (resource.RLIMIT_AS, {_MEMORY})):
        resource.setrlimit(kind, (most, most))
except ImportError:
    pass
given = json.load(sys.stdin)
try:
    import jinja2.ext
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(message):
        raise jinja2.TemplateError(message)

    class Generation(jinja2.ext.Extension):
        tags = {{"generation"}}

        def parse(self, parser):
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    rooms = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    rooms.filters["tojson"] = lambda each, **options: json.dumps(each, ensure_ascii=False)
    rooms.globals |= {{"raise_exception": refuse, "strftime_now": lambda form: form}}
    size = 0
    for part in rooms.from_string(given["template"]).generate(**given["values"]):
        size += len(part)
        if size > given["most"]:
            sys.exit({_TOO_MUCH})
except (MemoryError, OverflowError):
    sys.exit({_TOO_MUCH})
except Exception:
    pass
"""

#: Templates that were tried, with the roles of the messages.
_TRIED: Final[set[tuple[object, ...]]] = set()


def check_template(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Mapping[str, object]]
) -> None:
    """Refuse a chat template that takes seconds, or memory, to write messages.

    It is tried once for each sequence of roles.

    Raises
    ------
    ModelError: names the limit.
    """
    template = tokenizer.get_chat_template()
    tried = (template, *(each["role"] for each in messages))
    if tried in _TRIED:
        return
    values = {
        **tokenizer.special_tokens_map,
        "messages": [dict(each) for each in messages],
        "add_generation_prompt": messages[-1]["role"] != "assistant",
        "enable_thinking": False,
    }
    most = _ADDS + 2 * sum(len(str(each["content"])) for each in messages)
    given = json.dumps({"template": template, "values": values, "most": most}, default=str)
    command = [sys.executable, "-c", _TRIAL]
    try:
        ended = subprocess.run(
            command, input=given, text=True, capture_output=True, timeout=_PATIENCE_S, check=False
        ).returncode
    except subprocess.TimeoutExpired:
        ended = _TOO_MUCH
    if ended == _TOO_MUCH or ended < 0:
        raise ModelError(
            f"its chat template takes more than {_SECONDS} s, {_MEMORY // 2**30} GiB or"
            f" {_ADDS:,} characters for {len(messages)} messages",
            where=tokenizer.name_or_path,
            cure="give a tokenizer whose template only writes the messages, or prompt_format: raw",
        )
    _TRIED.add(tried)
