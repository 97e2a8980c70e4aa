"""Convert pickled weights in a process of their own, into this machine's cache.

The process unpickles by `torch.load(weights_only=True)`, which makes tensors and runs nothing. Its
memory, time and files are limited, so that a file made to exhaust a machine ends with one line, and
its environment has no secrets.
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

from platformdirs import user_cache_path

from raybias.config.parts import CONVERTED
from raybias.engine.checkpoint import file_hashes, pickled_files
from raybias.engine.conversion import convert
from raybias.errors import ModelError, RaybiasError, said_by

#: Memory of the process beside the weights: torch alone maps several GiB.
_OVERHEAD_BYTES: Final = 8 * 2**30
#: Copies of the weights that it may have in memory, and on disk, and what a config may add there.
_COPIES: Final = 4
_SLACK_BYTES: Final = 2**28
#: Slowest conversion that is waited for, and what starting the process takes.
_BYTES_PER_S: Final = 5 * 2**20
_STARTING_S: Final = 120
_OPEN_FILES: Final = 256
#: The environment that the process keeps; tokens and keys are not among it.
_ENVIRONMENT: Final = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "PYTHONPATH", "XDG_CACHE_HOME")


def converted_folder(folder: Path) -> Path:
    """Return the cache folder for a checkpoint's converted weights, whether it exists or not.

    Its name is a hash of all files that decide what the model computes, so a changed file is
    another folder.
    """
    content = json.dumps(file_hashes(folder), sort_keys=True)
    name = hashlib.sha256(content.encode()).hexdigest()[:32]
    return user_cache_path("raybias") / "converted" / name


def converted_weights(folder: Path, where: str) -> Path:
    """Return a folder with a checkpoint's weights as safetensors; the first call converts them.

    folder: a checkpoint whose weights are pickled.
    where: its name in messages.

    Raises ModelError: more than weights in a file, a damaged one, or one beyond the limits.
    """
    out = converted_folder(folder)
    if (out / CONVERTED).is_file():
        return out
    size = sum(path.stat().st_size for path in pickled_files(folder))
    command = [sys.executable, "-m", "raybias.engine.convert_alone", str(folder), str(out)]
    environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
    try:
        done = subprocess.run(
            [*command, str(size), where],
            env={**environment, "HF_HUB_OFFLINE": "1", "PYTHONUTF8": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_STARTING_S + size / _BYTES_PER_S,
            check=False,
        )
        ended = f"its process ended with {done.returncode}"
        lines = done.stdout.strip().splitlines()
    except subprocess.TimeoutExpired:
        ended, lines = "it took too long", []
    # Another process may have converted the same files meanwhile.
    if (out / CONVERTED).is_file():
        return out
    with suppress(LookupError, ValueError):
        error = json.loads(lines[-1])
        raise ModelError(error["problem"], where=where, cure=error["cure"])
    raise ModelError(
        f"its pickled weights cannot be converted ({ended})",
        where=where,
        cure="give a revision that has safetensors, or ask its authors for them",
    )


def limit_process(size: int) -> None:
    """Limit this process's memory, time and files for `size` bytes of weights."""
    seconds = int(_STARTING_S + size / _BYTES_PER_S)
    limits = {
        resource.RLIMIT_AS: _OVERHEAD_BYTES + _COPIES * size,
        resource.RLIMIT_CPU: seconds,
        resource.RLIMIT_FSIZE: _COPIES * size + _SLACK_BYTES,
        resource.RLIMIT_NOFILE: _OPEN_FILES,
        resource.RLIMIT_CORE: 0,
    }
    for which, most in limits.items():
        # macOS has no limit of the address space.
        with suppress(ValueError, OSError):
            resource.setrlimit(which, (most, most))


def main(folder: str, out: str, size: str, where: str) -> int:
    """Convert `folder` to `out`; print the error as a line of JSON and return 1 if it fails."""
    limit_process(int(size))
    try:
        convert(folder, out)
    except RaybiasError as error:
        print(json.dumps({"problem": error.problem, "cure": error.cure}))
        return 1
    except (MemoryError, RuntimeError) as error:
        problem = f"its pickled weights do not fit the limits of a conversion ({said_by(error)})"
        cure = f"convert {where} where there is more memory, by `raybias data convert`"
        print(json.dumps({"problem": problem, "cure": cure}))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
