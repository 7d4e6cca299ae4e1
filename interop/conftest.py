"""A broker as a process of its own, and clients of it."""

import os
import signal
import socket
import subprocess
import time
import urllib.request

import felix
import pytest

TENANT = NAMESPACE = "default"
PATIENCE = 30.0


def free_port():
    """A port that is free for TCP and UDP on 127.0.0.1."""
    for _ in range(50):
        with socket.socket() as tcp, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
            tcp.bind(("127.0.0.1", 0))
            try:
                udp.bind(tcp.getsockname())
            except OSError:
                continue
            return tcp.getsockname()[1]
    raise RuntimeError("no port is free for TCP and UDP")


class Broker:
    def __init__(self, directory):
        self.directory = directory
        self.binary = os.environ["FELIX_BIN"]
        self.port, self.http = free_port(), free_port()
        self.data = directory / "data"
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith("FELIX_")}
        self.environment["XDG_CONFIG_HOME"] = str(directory / "config")
        self.process = None
        self.start()

    @property
    def address(self):
        return f"127.0.0.1:{self.port}"

    @property
    def ca(self):
        return str(self.data / "tls" / "ca.crt")

    def start(self):
        log = open(self.directory / "serve.log", "ab")
        self.process = subprocess.Popen(
            [self.binary, "serve", "--data", str(self.data), "--listen", self.address,
             "--http-listen", f"127.0.0.1:{self.http}", "--storage-min-free", "0",
             "--storage-segment-bytes", "64KiB", "--storage-retention-check-interval", "200ms"],
            env=self.environment, stdout=log, stderr=log)
        log.close()
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.http}/ready", timeout=1):
                    return
            except OSError:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError((self.directory / "serve.log").read_text())
                time.sleep(0.02)

    def stop(self, how=signal.SIGTERM):
        if self.process is None:
            return
        self.process.send_signal(how)
        code = self.process.wait(PATIENCE)
        self.process = None
        if how == signal.SIGTERM:
            assert code == 0, (code, (self.directory / "serve.log").read_text())

    def run(self, *arguments):
        done = subprocess.run([self.binary, *arguments], env=self.environment, capture_output=True, text=True, timeout=PATIENCE)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def stream(self, name, *arguments):
        self.run("stream", "create", name, *arguments)
        return name

    def token(self, *permissions):
        return self.run("token", "mint", "--ttl", "1h", *[a for p in permissions for a in ("--perm", p)])

    def client(self, token=None, **more):
        return felix.Client(self.address, tenant_id=TENANT, token=token or self.token(), ca_file=self.ca, **more)


@pytest.fixture
def broker(tmp_path):
    b = Broker(tmp_path)
    yield b
    b.stop()


@pytest.fixture(scope="session")
def shared(tmp_path_factory):
    b = Broker(tmp_path_factory.mktemp("broker"))
    yield b
    b.stop()


@pytest.fixture(scope="session")
def client(shared):
    with shared.client() as c:
        yield c
