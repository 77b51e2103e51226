"""The wheel that `pip install .` builds: the layers, and nothing else."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import backbone.adab2n as adab2n

CHECKOUT = Path(__file__).parents[2]


def test_wheel_holds_the_package_alone(tmp_path):
    source = tmp_path / "source"  # building writes beside the sources
    shutil.copytree(CHECKOUT / "backbone" / "adab2n", source / "backbone" / "adab2n")
    for name in ("pyproject.toml", "LICENSE"):
        shutil.copy(CHECKOUT / name, source)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--wheel-dir", str(tmp_path), str(source)], check=True)
    (path,) = tmp_path.glob("adab2n-*.whl")
    assert path.name.split("-")[1] == adab2n.__version__
    with zipfile.ZipFile(path) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info" not in name}
        (metadata,) = (wheel.read(name).decode() for name in wheel.namelist() if name.endswith("METADATA"))
    sources = [p for p in (CHECKOUT / "backbone" / "adab2n").iterdir() if p.is_file()]
    assert names == {f"adab2n/{p.name}" for p in sources}
    required = [line for line in metadata.splitlines() if line.startswith("Requires-Dist")]
    assert required == ["Requires-Dist: torch>=2.4"]
