"""What is released: both packages build, hold what they need and nothing else, and the wheel works by itself."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

import apev

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The sdist and the wheel, built as a release builds them; without a network."""
    pytest.importorskip("build")
    pytest.importorskip("hatchling")
    out = tmp_path_factory.mktemp("dist")
    command: list[str | Path] = [sys.executable, "-m", "build", "--no-isolation", "--outdir", out, ROOT]
    built = subprocess.run(command, capture_output=True, text=True, timeout=200, cwd=out)
    assert built.returncode == 0, built.stdout + built.stderr
    (sdist,), (wheel,) = out.glob("*.tar.gz"), out.glob("*.whl")
    return sdist, wheel


def test_the_wheel_holds_the_package_and_nothing_else(packages: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(packages[1]) as wheel:
        names = set(wheel.namelist())
        about = f"apev-{apev.__version__}.dist-info"
        metadata = wheel.read(f"{about}/METADATA").decode()
    ours = ROOT / "src"
    kept = {path for path in (ours / "apev").rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    assert {path.relative_to(ours).as_posix() for path in kept} == {name for name in names if not name.startswith(about)}
    assert "apev/py.typed" in names
    assert any(name.endswith((".npz", ".png", ".jpg", ".safetensors")) for name in names), "the demo's photographs are missing"
    assert f"Version: {apev.__version__}\n" in metadata
    assert packages[1].name == f"apev-{apev.__version__}-py3-none-any.whl"
    assert packages[1].stat().st_size < 20e6


def test_the_source_package_builds_itself(packages: tuple[Path, Path]) -> None:
    with tarfile.open(packages[0]) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    assert {"pyproject.toml", "README.md", "LICENSE", "src/apev/__init__.py"} <= names
    assert not any(name.startswith((".venv", "runs/", "docs/_build")) for name in names)


def test_the_changelog_has_this_version() -> None:
    assert f"\n## {apev.__version__}" in (ROOT / "CHANGELOG.md").read_text()
    assert f"version: {apev.__version__}" in (ROOT / "CITATION.cff").read_text()


def smallest_demo(scripts: Path, folder: Path, env: dict[str, str]) -> None:
    """The wheel's own command trains, tests and writes its page; nothing of the checkout is near."""
    where = "import apev; print(apev.__file__)"
    told = subprocess.run([scripts / "python", "-c", where], capture_output=True, text=True, cwd=folder, env=env, check=True)
    assert Path(told.stdout.strip()).is_relative_to(scripts.parent)
    command: list[str | Path] = [scripts / "apev", "reproduce", "locked-doors", "--scale", "smoke", "--out", "smoke"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800, cwd=folder, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (folder / "smoke" / "report.html").stat().st_size > 10_000


def without_our_sources() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"OMP_NUM_THREADS": "1"}


def test_the_wheel_runs_the_smallest_demo(packages: tuple[Path, Path], tmp_path: Path) -> None:
    """In an environment that holds nothing but the wheel; what it depends on is lent from this one, not downloaded."""
    venv.create(tmp_path / "empty", with_pip=False)
    scripts = tmp_path / "empty" / ("Scripts" if sys.platform == "win32" else "bin")
    site = Path(sysconfig.get_path("purelib", "venv", vars={"base": str(tmp_path / "empty")}))
    install: list[str | Path] = [sys.executable, "-m", "pip", "--python", scripts / "python", "install", "-q", "--no-deps"]
    subprocess.run([*install, "--no-index", packages[1]], capture_output=True, check=True, timeout=300)
    (site / "lent.pth").write_text(f"{sysconfig.get_path('purelib')}\n{sysconfig.get_path('platlib')}\n")
    smallest_demo(scripts, tmp_path, without_our_sources())


@pytest.mark.slow
def test_the_wheel_runs_the_smallest_demo_in_an_empty_environment(packages: tuple[Path, Path], tmp_path: Path) -> None:
    venv.create(tmp_path / "empty", with_pip=True)
    scripts = tmp_path / "empty" / ("Scripts" if sys.platform == "win32" else "bin")
    install: list[str | Path] = [scripts / "python", "-m", "pip", "install", "-q", "-c", ROOT / "constraints.txt", packages[1]]
    done = subprocess.run(install, capture_output=True, text=True, timeout=1800, cwd=tmp_path, env=without_our_sources())
    assert done.returncode == 0, done.stdout + done.stderr
    smallest_demo(scripts, tmp_path, without_our_sources())
