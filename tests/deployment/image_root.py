"""The file system of the image, made by the instructions of the Containerfile in a folder: no container engine is needed, but root.

The base image is Debian's, by debootstrap. Processes run in it by chroot, in a mount namespace of their own.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

DEBIAN = "bookworm"
_TOOLS = ("debootstrap", "unshare", "chroot", "mount", "ip")
_EXTRA_CERTIFICATES = Path("/usr/local/share/ca-certificates")
_BUILD_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
_BUNDLE = "/etc/ssl/certs/ca-certificates.crt"


@dataclass(frozen=True, slots=True)
class Mount:
    """A folder of this machine at `path` of the image; None: an empty one in memory."""

    path: str
    folder: Path | None
    is_read_only: bool = False


@dataclass(slots=True)
class ImageRoot:
    """A folder, and what the Containerfile says about processes that run in it."""

    folder: Path
    environment: dict[str, str] = field(default_factory=dict)
    user: str = "0:0"
    work_dir: str = "/"
    entry_point: list[str] = field(default_factory=list)

    def command(
        self, arguments: Sequence[str], mounts: Sequence[Mount], *, is_read_only: bool, network: bool = True
    ) -> list[str]:
        """Return a command that runs `arguments` in the image: it becomes that process, so that signals reach it."""
        root = shlex.quote(str(self.folder))
        steps = [f"mount --bind {root} {root}"]
        if is_read_only:
            steps.append(f"mount -o remount,bind,ro {root}")
        steps += [f"mount -t proc proc {root}/proc", f"mount --rbind /dev {root}/dev"]
        for mount in mounts:
            target = f"{root}{mount.path}"
            if mount.folder is None:
                steps.append(f"mount -t tmpfs -o mode=1777,noexec,nosuid,nodev tmpfs {target}")
            else:
                steps.append(f"mount --bind {shlex.quote(str(mount.folder))} {target}")
                steps += [f"mount -o remount,bind,ro {target}"] if mount.is_read_only else []
        if not network:
            steps.append(f"{_path_of('ip')} link set lo up")
        inner = f"cd {shlex.quote(self.work_dir)} && exec {shlex.join(arguments)}"
        steps.append(f"exec {_path_of('chroot')} --userspec={self.user} {root} /bin/sh -c {shlex.quote(inner)}")
        return [_path_of("unshare"), "--mount", *([] if network else ["--net"]), "sh", "-e", "-c", "\n".join(steps)]

    def run(self, arguments: Sequence[str], *, network: bool = True, **environment: str) -> str:
        """Run a command in the image to its end, with a file system that it can write. Return its output."""
        ended = subprocess.run(
            self.command(arguments, [], is_read_only=False, network=network),
            env={"PATH": _BUILD_PATH, **self.environment, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert ended.returncode == 0, f"{shlex.join(arguments)} ended with {ended.returncode}:\n{ended.stdout[-5000:]}"
        return ended.stdout


def _path_of(tool: str) -> str:
    """Return where a program of this machine is: the PATH of the process is that of the image."""
    path = shutil.which(tool)
    assert path is not None, tool
    return path


def require_tools() -> None:
    """Skip the test where the image's file system cannot be made."""
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} is not installed: apt-get install debootstrap iproute2 util-linux")
    if os.geteuid() != 0:
        pytest.skip("debootstrap and chroot need root")


def instructions_of(containerfile: Path) -> list[tuple[str, str]]:
    """Return instruction and arguments, with continued lines joined."""
    lines = [line for line in containerfile.read_text(encoding="utf-8").splitlines() if line.strip() and not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines()
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in joined)]


def build_image_root(folder: Path, repository: Path, dist: Path) -> ImageRoot:
    """Follow the instructions of the Containerfile. `dist` holds what `make release` writes."""
    image = ImageRoot(folder)
    for name, arguments in instructions_of(repository / "conf" / "container" / "Containerfile"):
        _follow(image, name, arguments, repository, dist)
    return image


def _follow(image: ImageRoot, name: str, arguments: str, repository: Path, dist: Path) -> None:
    match name:
        case "FROM":
            assert arguments == f"docker.io/library/debian:{DEBIAN}-slim"
            command = ["debootstrap", "--variant=minbase", DEBIAN, str(image.folder)]
            ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
            assert ended.returncode == 0, ended.stdout[-3000:]
            _use_network_of_this_machine(image.folder)
        case "COPY":
            *sources, target = arguments.split()
            (image.folder / target.strip("/")).mkdir(parents=True, exist_ok=True)
            for source in sources:
                base = dist.parent if source.startswith("dist/") else repository
                (file,) = base.glob(source.replace("dist/", f"{dist.name}/"))
                shutil.copy(file, image.folder / target.strip("/"))
        case "RUN":
            image.run(shlex.split(arguments), PIP_CERT=_BUNDLE)
        case "ENV":
            image.environment |= _pairs(arguments)
        case "USER":
            image.user = arguments
        case "WORKDIR":
            image.work_dir = arguments
        case "ENTRYPOINT":
            image.entry_point = [word.strip(' "') for word in arguments.strip("[]").split(",")]
        case _:
            assert name in ("LABEL", "EXPOSE", "STOPSIGNAL", "CMD"), f"{name} is not known to this test"


def _use_network_of_this_machine(root: Path) -> None:
    """Copy what container engines write as well, and the certificates without which a build behind some proxies would fail."""
    for name in ("resolv.conf", "hosts"):
        shutil.copy(Path("/etc", name), root / "etc" / name)
    if _EXTRA_CERTIFICATES.is_dir():
        shutil.copytree(_EXTRA_CERTIFICATES, root / _EXTRA_CERTIFICATES.relative_to("/"), dirs_exist_ok=True)


def _pairs(arguments: str) -> Mapping[str, str]:
    return dict(word.split("=", 1) for word in shlex.split(arguments))
