"""The chart's router follows the names of pods: a real HAProxy asks a name server of the test's own."""

from __future__ import annotations

import re
import shutil
import socket
import threading
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from http.server import ThreadingHTTPServer
from pathlib import Path
from subprocess import DEVNULL, Popen

import pytest

from deploy.ports import choose_ports
from tests.deploy.test_chart import CLAIM, one, rendered
from tests.serving.processes import until
from tests.web import Quiet

STAYS, LEAVES = "127.0.0.2", "127.0.0.3"
HOSTS = {
    f"shop-servers-{n}.shop-servers.models.svc.cluster.local": host for n, host in enumerate((STAYS, LEAVES))
}
DNS_S = 30  # that CoreDNS lets others keep its answers, as kubeadm and AKS set it up


@pytest.mark.parametrize("dns_s", [DNS_S, 5])
def test_a_pod_that_leaves_serves_until_the_router_knows(dns_s: int) -> None:
    objects = rendered(CLAIM if dns_s == DNS_S else {**CLAIM, "router": {"dnsSeconds": dns_s}})
    assert "publishNotReadyAddresses" not in one(objects, "Service", "shop-servers")["spec"]
    text: str = one(objects, "ConfigMap", "shop-router")["data"]["haproxy.cfg"]
    hold = dict(re.findall(r"hold (\w+) (\w+)", text))
    pod = one(objects, "StatefulSet", "shop-servers")["spec"]["template"]["spec"]
    (server,) = pod["containers"]
    command, seconds = server["lifecycle"]["preStop"]["exec"]["command"]
    known = dns_s + sum(int(hold[name].removesuffix("s")) for name in ("valid", "nx"))
    assert command == "sleep" and known < int(seconds) < known + 10
    assert pod["terminationGracePeriodSeconds"] > int(seconds) + 60, "and gives its last answers"
    assert {hold[name] for name in ("timeout", "refused", "other")} == {"1h"}, (
        "no name server is no reason to go"
    )


class Names(threading.Thread):
    """A name server for addresses of IPv4 that knows `hosts`."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.hosts = dict(HOSTS)
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]

    def run(self) -> None:
        while True:
            asked, client = self._socket.recvfrom(4096)
            if not asked:
                return
            self._socket.sendto(self._answer(asked), client)

    def close(self) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:
            own.sendto(b"", ("127.0.0.1", self.port))
        self.join()
        self._socket.close()

    def _answer(self, asked: bytes) -> bytes:
        """To the one question of a message: RFC 1035, section 4.1."""
        labels, place = [], 12
        while length := asked[place]:
            labels.append(asked[place + 1 : place + 1 + length].decode())
            place += 1 + length
        host = self.hosts.get(".".join(labels).lower(), "")
        found = host and asked[place + 1 : place + 3] == b"\0\1"  # type A
        record = b"\xc0\x0c\0\1\0\1\0\0\0\5\0\4" + socket.inet_aton(host) if found else b""
        flags = b"\x85\x80" if host else b"\x85\x83"  # there is no such name
        return (
            asked[:2] + flags + b"\0\1\0" + bytes([bool(found)]) + bytes(4) + asked[12 : place + 5] + record
        )


class Pod(ThreadingHTTPServer):
    """Says on which address it is asked; an inference only once it `may_answer`."""

    def __init__(self, host: str, port: int) -> None:
        self.may_answer, self.asked = threading.Event(), threading.Event()

        class Handler(Quiet):
            server: Pod

            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("Content-Length", str(len(host)))
                self.end_headers()
                self.wfile.write(host.encode())

            def do_POST(self) -> None:
                self.server.asked.set()
                self.server.may_answer.wait()
                self.do_GET()

        super().__init__((host, port), Handler)
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    def handle_error(self, *_: object) -> None:
        """HAProxy ends its checks as soon as it has read enough."""


class World:
    """The chart's router before two pods; `url` is its."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.names, ports, port = Names(), choose_ports(), choose_ports().http
        self.names.start()
        stack.callback(self.names.close)
        self.pods = {host: stack.enter_context(Pod(host, port)) for host in (STAYS, LEAVES)}
        for pod in self.pods.values():
            stack.callback(pod.shutdown)
            stack.callback(pod.may_answer.set)
        text: str = one(rendered(CLAIM), "ConfigMap", "shop-router")["data"]["haproxy.cfg"]
        places = {
            "/run/haproxy": str(folder), "parse-resolv-conf": f"nameserver own 127.0.0.1:{self.names.port}",
            "0.0.0.0:8000": ports.http_url, "0.0.0.0:8001": ports.grpc_url, "0.0.0.0:8002": ports.metrics_url,
            "local:8000": f"local:{port}", "local:8001": f"local:{port}", "port 8000": f"port {port}",
        }  # fmt: skip
        for known, here in places.items():
            text = text.replace(known, here)
        (folder / "haproxy.cfg").write_text(text)
        router = stack.enter_context(
            Popen(["haproxy", "-db", "-f", folder / "haproxy.cfg"], stdout=DEVNULL, stderr=DEVNULL)
        )
        stack.callback(router.kill)
        self._url = f"http://{ports.http_url}/v2"

    def infer(self) -> str:
        """Which pod answers."""
        with urllib.request.urlopen(f"{self._url}/models/recommend/infer", b"{}", timeout=30) as answer:
            return str(answer.read().decode())

    def ready(self) -> str:
        """Which pod answers for the servers' health; "" where none does yet."""
        with suppress(OSError), urllib.request.urlopen(f"{self._url}/health/ready", timeout=30) as answer:
            return str(answer.read().decode())
        return ""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with ExitStack() as stack:
        yield World(tmp_path, stack)


@pytest.mark.skipif(not shutil.which("haproxy"), reason="apt-get install haproxy")
def test_a_pod_without_a_name_answers_what_it_has_and_gets_no_more(world: World) -> None:
    until(lambda: {world.ready() for _ in range(4)} == {STAYS, LEAVES})
    world.pods[STAYS].may_answer.set()
    with ThreadPoolExecutor() as pool:
        while not world.pods[LEAVES].asked.is_set():
            held = pool.submit(world.infer)
            until(lambda held=held: held.done() or world.pods[LEAVES].asked.is_set())
        del world.names.hosts[next(name for name, host in HOSTS.items() if host == LEAVES)]
        until(lambda: {world.ready() for _ in range(8)} == {STAYS})
        assert {world.infer() for _ in range(8)} == {STAYS} and not held.done()
        world.pods[LEAVES].may_answer.set()
        assert held.result() == LEAVES
        world.names.hosts |= HOSTS
        until(lambda: {world.ready() for _ in range(4)} == {STAYS, LEAVES})
