"""A Kerberos realm of the tests: MIT's KDC on a free port of this machine, with a database in a folder of its own."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from shallow_mirror.local_kafka.ports import free_ports
from shallow_mirror.local_kafka.server_process import ServerProcess

START_TIMEOUT_S = 20.0
_PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])
_PROGRAMS = ("krb5kdc", "kdb5_util", "kadmin.local", "kinit", "faketime")


def missing_programs() -> list[str]:
    """Return the programs that are not installed, of Debian's packages krb5-kdc, krb5-admin-server, krb5-user and faketime."""
    return [name for name in _PROGRAMS if shutil.which(name, path=_PATH) is None]


class Realm:
    """Context manager. `lifetime_s`: the longest life of a ticket."""

    def __init__(
        self, folder: Path, name: str, *, lifetime_s: int = 600, database: Path | None = None, clock_offset: str | None = None
    ) -> None:
        """`database`: folder of another KDC of this realm; None: its own. `clock_offset`: as faketime takes it, such as "+1h"."""
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.name = folder, name
        self._database = database or folder
        (self.port,) = free_ports(1)
        self._lifetime_s = lifetime_s
        self._clock = {} if clock_offset is None else _clock_environment(clock_offset)
        self._kdc = ServerProcess(f"the KDC in {folder}", folder / "kdc.out")
        self.config_file = folder / "krb5.conf"
        """For programs whose own realm this is, such as its brokers."""

    def __enter__(self) -> Self:
        self.config_file.write_text(client_config([self]), encoding="utf-8")
        (self.folder / "kdc.conf").write_text(self._kdc_config(), encoding="utf-8")
        if self._database == self.folder:
            self._run("kdb5_util", "create", "-s", "-P", "master", "-W")
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def start(self) -> None:
        self._kdc.launch(["env", *(f"{key}={value}" for key, value in self._environment().items()), _program("krb5kdc"), "-n"])
        until = time.monotonic() + START_TIMEOUT_S
        while not self._answers():
            log = (self.folder / "kdc.out").read_text(encoding="utf-8")
            assert self._kdc.is_running(), log
            assert time.monotonic() < until, log
            time.sleep(0.02)

    def stop(self) -> None:
        self._kdc.stop()

    def pause(self) -> None:
        """Let it answer nothing, as behind a firewall that drops packets."""
        self._kdc.pause()

    def resume(self) -> None:
        self._kdc.resume()

    def add(self, principal: str, *options: str) -> None:
        """Add a principal with a random key. `options`: of kadmin's addprinc, such as `-expire yesterday`."""
        output = self.admin(f"addprinc -randkey {' '.join(options)} {principal}")
        assert "created." in output, output

    def keytab(self, principal: str, file_name: str | None = None) -> Path:
        """Return a keytab with the current key of a principal."""
        file = self.folder / (file_name or f"{principal.replace('/', '_')}.keytab")
        file.unlink(missing_ok=True)
        self.admin(f"ktadd -norandkey -k {file} {principal}")
        assert file.exists()
        return file

    def change_key(self, principal: str) -> None:
        """Give a principal another key, as `ktadd` on another machine does: keytabs made before are useless."""
        self.admin(f"change_password -randkey {principal}")

    def admin(self, command: str) -> str:
        return self._run("kadmin.local", "-r", self.name, "-q", command)

    def kinit(self, principal: str, keytab: Path, cache: Path, *options: str) -> None:
        self._run("kinit", *options, "-c", str(cache), "-k", "-t", str(keytab), f"{principal}@{self.name}")

    def tickets_given(self, principal: str) -> int:
        """Return how many ticket-granting tickets the KDC has issued to a principal."""
        return self._log_lines("AS_REQ", "ISSUE", principal)

    def refusals(self, principal: str) -> int:
        """Return how often a key of a principal was wrong."""
        return self._log_lines("AS_REQ", "PREAUTH_FAILED", principal)

    def _log_lines(self, request: str, outcome: str, principal: str) -> int:
        lines = (self.folder / "kdc.log").read_text(encoding="utf-8").splitlines()
        return sum(f" {request} " in line and f" {outcome}: " in line and f" {principal}@" in line for line in lines)

    def _run(self, name: str, *arguments: str) -> str:
        done = subprocess.run(
            [_program(name), *arguments],
            env=os.environ | self._environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )
        # kadmin.local exits with 0 whatever its query did.
        output = f"{name} {arguments}: {done.stdout}{done.stderr}"
        assert done.returncode == 0, output
        assert "while" not in done.stderr, output
        return done.stdout

    def _answers(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
        except OSError:
            return False
        return True

    def _environment(self) -> dict[str, str]:
        return {"KRB5_CONFIG": str(self.config_file), "KRB5_KDC_PROFILE": str(self.folder / "kdc.conf"), **self._clock}

    def _kdc_config(self) -> str:
        return f"""\
[kdcdefaults]
  kdc_listen = 127.0.0.1:{self.port}
  kdc_tcp_listen = 127.0.0.1:{self.port}
[realms]
  {self.name} = {{
    database_name = {self._database}/principal
    key_stash_file = {self._database}/stash
    acl_file = {self._database}/acl
    max_life = {self._lifetime_s}s
    max_renewable_life = {self._lifetime_s}s
    default_principal_flags = +preauth
    supported_enctypes = aes256-cts:normal
  }}
[logging]
  kdc = FILE:{self.folder}/kdc.log
  admin_server = FILE:{self.folder}/kadmin.log
"""


def client_config(realms: Sequence[Realm], *lines: str) -> str:
    """Return a krb5.conf. The first realm is the default. `lines`: more of its section libdefaults."""
    blocks = "".join(f"  {realm.name} = {{\n    kdc = 127.0.0.1:{realm.port}\n  }}\n" for realm in realms)
    defaults = "".join(f"  {line}\n" for line in (f"default_realm = {realms[0].name}", "dns_lookup_kdc = false", *lines))
    return f"[libdefaults]\n{defaults}[realms]\n{blocks}"


def _clock_environment(offset: str) -> dict[str, str]:
    """Return what faketime sets. Under faketime itself a KDC would be its child, and outlive it."""
    printed = subprocess.run([_program("faketime"), "-f", offset, "env"], capture_output=True, text=True, timeout=60, check=True)
    variables = dict(line.split("=", 1) for line in printed.stdout.splitlines() if "=" in line)
    return {name: value for name, value in variables.items() if name in ("LD_PRELOAD", "FAKETIME")}


def _program(name: str) -> str:
    found = shutil.which(name, path=_PATH)
    assert found is not None, f"{name} is not installed"
    return found
