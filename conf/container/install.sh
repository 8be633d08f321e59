#!/bin/sh
# The steps of the Containerfile, as root in a Debian 12 system: `install.sh system`, then `install.sh package`.
# /opt/build holds the wheel, constraints.txt and fill_cache.py.
set -eu
umask 022

BUILD=/opt/build
PREFIX=/opt/shallow-mirror
STATE=/var/lib/shallow-mirror
USER_ID=10001

system() {
    export DEBIAN_FRONTEND=noninteractive
    apt-get update
    apt-get install --yes --no-install-recommends ca-certificates openjdk-17-jre-headless python3 python3-venv tini
    apt-get clean
    rm -rf /var/lib/apt/lists/*
    groupadd --gid "$USER_ID" mirror
    useradd --uid "$USER_ID" --gid "$USER_ID" --home-dir "$STATE" --no-create-home --shell /usr/sbin/nologin mirror
    install --directory --owner "$USER_ID" --group "$USER_ID" --mode 0750 "$STATE"
    install --directory --mode 0755 /etc/shallow-mirror
}

package() {
    python3 -m venv "$PREFIX"
    pip_install setuptools
    # PySpark is published as source only: without isolation it is built with the pinned setuptools.
    pip_install --no-build-isolation --use-pep517 "$(ls "$BUILD"/shallow_mirror-*-py3-none-any.whl)[local,rebuild,metrics]"
    "$PREFIX/bin/pip" check
    SHALLOW_MIRROR_CACHE="$PREFIX/cache" "$PREFIX/bin/python" "$BUILD/fill_cache.py"
    "$PREFIX/bin/shallow-mirror" --version
    rm -rf "$BUILD" "$PREFIX/cache/ivy"     # the jars are in a folder beside it
}

pip_install() {
    "$PREFIX/bin/pip" install --no-cache-dir --disable-pip-version-check --root-user-action ignore \
        --constraint "$BUILD/constraints.txt" "$@"
}

case "${1-}" in
    system | package) "$1" ;;
    *) echo "usage: install.sh system|package" >&2; exit 2 ;;
esac
