"""One object store for the session; a proxy of its own and an empty folder for each test."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.object_store.servers import BUCKET, SECRET_KEY, GoMissingError, Store, StoreProxy, StoreServer, server_program

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that need the server as thorough, which leaves them out of the quick part."""
    for item in items:
        if isinstance(item, pytest.Function) and "store_server" in item.fixturenames and item.path.parent == HERE:
            item.add_marker(pytest.mark.thorough)


@pytest.fixture(scope="session")
def store_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreServer]:
    try:
        server_program()
    except GoMissingError as error:
        pytest.skip(str(error))
    server = StoreServer(tmp_path_factory.mktemp("store") / "objects")
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def store_proxy(store_server: StoreServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreProxy]:
    proxy = StoreProxy(store_server, tmp_path_factory.mktemp("proxy"))
    proxy.start()
    yield proxy
    proxy.stop()


@pytest.fixture
def store(
    store_server: StoreServer, store_proxy: StoreProxy, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Store]:
    monkeypatch.setenv("STORE_SECRET_KEY", SECRET_KEY)
    name = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower()).strip("-")
    yield Store(store_proxy, store_server, f"s3://{BUCKET}/{name}")
    store_proxy.clear()
