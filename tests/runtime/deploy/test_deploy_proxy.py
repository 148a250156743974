"""nginx.conf: its limits are the server's, and nobody notices that one of two servers drains."""

from __future__ import annotations

import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx2
import pytest

from runtime.serve.config import MIB, ServeConfig
from tests.helpers.readme import ROOT
from tests.helpers.waiting import within
from tests.runtime.deploy.deployed import DEPLOY, served_as

CONF = (DEPLOY / "nginx.conf").read_text(encoding="utf-8")
PORTS = re.findall(r"server 127\.0\.0\.1:(\d+) ", CONF)


def only(directive: str) -> str:
    [found] = re.findall(rf"{directive}\s+([^;]+);", CONF)
    return str(found)


def test_its_limits_are_the_servers() -> None:
    """A proxy that gives up first leaves the server decoding for nobody."""
    config = ServeConfig(model_name="any")
    assert config.request_timeout_s is not None
    assert int(only("proxy_read_timeout").rstrip("s")) > config.request_timeout_s
    assert only("client_max_body_size") == f"{config.max_body_bytes // MIB}m"
    assert only("proxy_buffering") == "off"
    assert int(PORTS[0]) == served_as(["serve", "--bundle", "any"]).port
    assert {"http_503", "http_429", "non_idempotent"} <= set(only("proxy_next_upstream").split())


@contextmanager
def fake_server() -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process, and its port. Its texts never end."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.runtime.serve.fake_server", "60"],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        found = re.search(r"127\.0\.0\.1:(\d+)", process.stderr.readline())
        assert found is not None
        yield process, found[1]
    finally:
        process.kill()
        process.communicate()


def free_port() -> int:
    with socket.socket() as any_port:
        any_port.bind(("127.0.0.1", 0))
        return int(any_port.getsockname()[1])


def is_open(port: int) -> bool:
    with socket.socket() as caller:
        return caller.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def nginx(folder: Path, ports: list[str], port: int) -> Iterator[None]:
    """It, with our file, in front of servers at other ports than there."""
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=any"]
    made += ["-keyout", str(folder / "key"), "-out", str(folder / "certificate")]
    subprocess.run(made, check=True, capture_output=True)
    site = CONF.replace("listen 443", f"listen 127.0.0.1:{port}")
    for there, here in zip(PORTS, ports, strict=True):
        site = site.replace(f"127.0.0.1:{there} ", f"127.0.0.1:{here} ")
    site = re.sub(r"(ssl_certificate)(\s+)\S+;", rf"\1\2{folder}/certificate;", site)
    site = re.sub(r"(ssl_certificate_key)(\s+)\S+;", rf"\1\2{folder}/key;", site)
    temporary = "".join(
        f"{each}_temp_path {folder}/{each};\n"
        for each in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    conf = folder / "nginx.conf"
    conf.write_text(
        f"pid {folder}/pid;\nerror_log {folder}/errors;\ndaemon off;\nmaster_process off;\n"
        f"events {{}}\nhttp {{\naccess_log off;\n{temporary}{site}}}\n"
    )
    program = shutil.which("nginx")
    assert program is not None
    process = subprocess.Popen([program, "-c", str(conf)], stderr=subprocess.DEVNULL)
    try:
        assert within(20, lambda: process.poll() is not None or is_open(port))
        assert process.poll() is None, (folder / "errors").read_text()
        yield
    finally:
        process.terminate()
        process.wait(20)


@pytest.mark.nginx
def test_nobody_notices_that_one_of_two_servers_drains(tmp_path: Path) -> None:
    port = free_port()
    url, body = f"https://127.0.0.1:{port}", {"prompt": "a", "stream": True, "max_tokens": 50}
    with ExitStack() as stack:
        leaving, first = stack.enter_context(fake_server())
        _, second = stack.enter_context(fake_server())
        stack.enter_context(nginx(tmp_path, [first, second], port))
        client = stack.enter_context(httpx2.Client(verify=False, timeout=20))

        def begun() -> Iterator[str]:
            """A stream's lines, as they come."""
            response = stack.enter_context(
                client.stream("POST", f"{url}/v1/completions", json=body)
            )
            assert response.status_code == 200
            return response.iter_lines()

        streams = [begun() for _ in range(2)]  # one on each
        leaving.send_signal(signal.SIGTERM)
        health = f"http://127.0.0.1:{first}/health"
        assert within(20, lambda: httpx2.get(health).status_code == 503)
        streams += [begun() for _ in range(4)]
        assert all(next(lines).startswith("data: ") for lines in streams)
        assert client.get(f"{url}/stats").status_code == 404
