"""What a wheel holds of outputs/: the results that ship, and nothing of whoever builds it."""

import subprocess
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildPy(build_py):
    """Of outputs/ only what git tracks; outputs/ is also where one's own runs are written."""

    def find_data_files(self, package: str, src_dir: str) -> list[str]:
        """The package's data files."""
        found: list[str] = super().find_data_files(package, src_dir)
        if package != "bnrecon.shipped" or not Path(".git").exists():
            return found  # from a source distribution, in which nothing else is
        listed = subprocess.check_output(["git", "ls-files", "-z", src_dir], encoding="utf-8")
        tracked = {Path(name) for name in listed.split("\0") if name}
        return [name for name in found if Path(name) in tracked]


setup(cmdclass={"build_py": BuildPy})
