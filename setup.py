"""What a wheel holds of outputs/: the results that ship, and nothing of whoever builds it."""

import subprocess
import tarfile
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

SHIPPED = "bnrecon.shipped"


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    member.mode = 0o644
    return member


class BuildPy(build_py):
    """Of outputs/ only what git tracks, as one archive; one's own runs are in outputs/ too."""

    def find_data_files(self, package: str, src_dir: str) -> list[str]:
        """The package's data files."""
        names: list[str] = super().find_data_files(package, src_dir)
        if package != SHIPPED or not Path(".git").exists():
            return names  # from a source distribution, in which nothing else is
        listed = subprocess.check_output(["git", "ls-files", "-z", src_dir], encoding="utf-8")
        tracked = {Path(name) for name in listed.split("\0") if name}
        return [name for name in names if Path(name) in tracked]

    def build_package_data(self) -> None:
        """Copy the data files, and pack those that ship (bnrecon/runtime/shipped.py)."""
        (ships,) = [each for each in self.data_files if each[0] == SHIPPED]
        self.data_files.remove(ships)
        super().build_package_data()
        if self.editable_mode:
            return
        _, source, _, names = ships
        with tarfile.open(Path(self.build_lib, "bnrecon/shipped.tar.xz"), "w:xz") as archive:
            for name in sorted(names):  # the same files make the same archive
                archive.add(Path(source, name), name, filter=_anonymous)


setup(cmdclass={"build_py": BuildPy})
