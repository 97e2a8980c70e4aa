"""Write pickled weights as safetensors: a program of its own, which imports nothing of raybias.

It gives up the network, where the kernel lets it, and memory, time and file sizes beyond the
weights' needs before it reads; torch's restricted unpickler then calls nothing but tensors' and
containers' constructors.
"""

import ctypes
import json
import os
import resource
import sys
import zipfile
from pathlib import Path

_NEW_USERS, _NEW_NETWORK = 0x10000000, 0x40000000
_SECONDS = 3600
_GIB = 2**30


def give_up(stored: int) -> bool:
    """Give up the network and all but the memory, time and files that weights of a size need.

    Returns whether the network is gone; works only with one thread.
    """
    limits = {
        "RLIMIT_CORE": 0,
        "RLIMIT_CPU": _SECONDS,
        "RLIMIT_FSIZE": 2 * stored + _GIB,
        "RLIMIT_DATA": 4 * stored + 8 * _GIB,
    }
    for name, most in limits.items():
        kind = getattr(resource, name)
        _, hard = resource.getrlimit(kind)
        least = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (least, least))
    unshare = getattr(ctypes.CDLL(None), "unshare", None)
    ways = (_NEW_USERS | _NEW_NETWORK, _NEW_NETWORK)
    return unshare is not None and any(unshare(way) == 0 for way in ways)


def main(out: Path, files: list[Path]) -> None:
    """Write each file's tensors into `out`, and print a JSON record."""
    offline = give_up(sum(file.stat().st_size for file in files))
    import torch
    from safetensors.torch import save_file

    torch.set_num_threads(1)
    places, total = {}, 0
    for number, file in enumerate(files, 1):
        many = f"model-{number:05}-of-{len(files):05}.safetensors"
        name = many if len(files) > 1 else "model.safetensors"
        held = torch.load(
            file, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(file)
        )
        tensors, seen = {}, set()
        for key, tensor in held.items():
            storage = tensor.untyped_storage()
            # safetensors refuses weights that share storage or are not contiguous.
            alone = storage.data_ptr() not in seen and storage.nbytes() == tensor.nbytes
            seen.add(storage.data_ptr())
            tensors[key] = tensor.contiguous() if alone else tensor.contiguous().clone()
            places[key], total = name, total + tensor.nbytes
        save_file(tensors, out / name, metadata={"format": "pt"})
    if len(files) > 1:
        index = {"metadata": {"total_size": total}, "weight_map": places}
        (out / "model.safetensors.index.json").write_text(json.dumps(index, indent=1))
    print(json.dumps({"tensors": len(places), "offline": offline, "torch": torch.__version__}))


if __name__ == "__main__":
    # This file's folder, whose modules would shadow others.
    del sys.path[0]
    try:
        main(Path(sys.argv[1]), [Path(name) for name in sys.argv[2:]])
    except Exception as error:
        said = next(iter(str(error).strip().splitlines()), "")
        print(f"{type(error).__name__}: {said}", file=sys.stderr, flush=True)
        # Exit without running code that a pickle may have left behind.
        os._exit(3)
