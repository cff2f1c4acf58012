"""Real containers of real runtimes, on stores and sockets of our own, and gone afterwards.

    def test_x(docker):
        box = docker.start("web", memory_bytes=64 * MIB)

Every container has a shell that fills its /dev/shm with FILL_BYTES and then sleeps; start() waits for it.
Everything is named rtdebug-..., and only what was started here is stopped.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import platform
import shutil
import signal
import subprocess
import tarfile
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest

from rtdebug.host.mounts import read_mountinfo

MIB = 1 << 20
FILL_BYTES = 23 * MIB
IMAGE = "localhost/rtdebug-busybox:1"
APPLETS = ("sh", "dd", "sleep", "cat", "ln", "rm", "mkdir")
SCRIPT = "trap 'exit 0' TERM; dd if=/dev/zero of=/dev/shm/fill bs=1048576 count=23 2>/dev/null; sleep 1000 & wait"
_GRACE_S = 20.0
_LIMITS = ("--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024")
"""podman's own defaults may be more than a sandboxed root may give."""
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}

T = TypeVar("T")


@dataclass(frozen=True)
class Box:
    """A running container of ours, as its runtime knows it."""

    id: str
    name: str | None
    pid: int


def wait_for(condition: Callable[[], T | None], what: str, timeout_s: float = _GRACE_S) -> T:
    """The first true value of `condition`; fails the test if there is none in time."""
    deadline = time.monotonic() + timeout_s
    while True:
        if value := condition():
            return value
        if time.monotonic() > deadline:
            pytest.fail(f"waited {timeout_s:g} s for {what}")
        time.sleep(0.02)


def call(*argv: str | Path, **options: Any) -> str:
    """Standard output of a command; fails the test with what it said if it fails."""
    # Files instead of pipes: a container keeps those of the command that started it.
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, stdout=out, stderr=err, timeout=60, check=False, **options
        )
        out.seek(0)
        err.seek(0)
        said = err.read().decode(errors="replace")
        assert done.returncode == 0, f"{' '.join(map(str, argv))}: status {done.returncode}: {said}"
        return out.read().decode()


def filled(pid: int) -> bool:
    """Whether the container's shell has filled its /dev/shm. The second witness: the file itself."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/root/dev/shm/fill").stat().st_size == FILL_BYTES
    return False


def until_filled(box: Box) -> Box:
    """Wait for the container's shell."""
    wait_for(lambda: filled(box.pid), f"/dev/shm of {box} to be filled")
    return box


def remove_cgroups(cgroup: str) -> None:
    """Remove a cgroup of ours and all below it from every hierarchy, once its processes are gone."""
    assert cgroup.startswith("/rtdebug-"), cgroup
    for mount in read_mountinfo():
        top = Path(mount.mount_point) / cgroup.lstrip("/")
        if mount.fstype.startswith("cgroup") and top.is_dir():
            for folder in sorted((Path(path) for path, _, _ in os.walk(top)), key=lambda p: -len(p.parts)):
                _remove_cgroup(folder)


def _remove_cgroup(folder: Path) -> None:
    def gone() -> bool:
        with contextlib.suppress(FileNotFoundError):
            try:
                folder.rmdir()
            except OSError:  # EBUSY: its last process is still being reaped
                return False
        return True

    wait_for(gone, f"{folder} to be empty")


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a daemon that we started, and wait for it."""
    process.send_signal(signal.SIGCONT)
    process.terminate()
    try:
        process.wait(_GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextlib.contextmanager
def daemon(argv: Sequence[str | Path], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a daemon with its output in a file."""
    with log.open("wb") as out:
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    try:
        yield process
    finally:
        stop(process)


def make_rootfs(folder: Path) -> Path:
    """A root file system of nothing but busybox."""
    for name in ("bin", "dev", "proc", "sys", "tmp", "etc"):
        (folder / name).mkdir(parents=True)
    busybox = shutil.which("busybox")
    assert busybox, "busybox-static is needed (apt-get install busybox-static)"
    shutil.copy(busybox, folder / "bin/busybox")
    for applet in APPLETS:
        (folder / "bin" / applet).symlink_to("busybox")
    return folder


def bind(source: Path | str, destination: str, *, writable: bool = False) -> dict[str, Any]:
    """A mount of config.json that shows a folder of the host's in the container."""
    options = ["rbind", "rw" if writable else "ro"]
    return {"destination": destination, "type": "bind", "source": str(source), "options": options}


def host_programs(folder: Path) -> tuple[Path, list[dict[str, Any]]]:
    """A root file system with this host's programs and libraries, read-only, and its mounts."""
    for name in ("usr", "etc", "dev", "proc", "sys", "tmp", "box"):
        (folder / name).mkdir(parents=True)
    for name in ("bin", "sbin", "lib", "lib64"):
        (folder / name).symlink_to(f"usr/{name}")
    (folder / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\nnobody:x:65534:65534::/tmp:/bin/sh\n")
    (folder / "etc/group").write_text("root:x:0:\nnogroup:x:65534:\n")
    for name in ("etc/localtime", "etc/alternatives", "etc/ld.so.cache"):
        source = Path("/") / name
        if source.is_dir():
            shutil.copytree(source, folder / name, symlinks=True)
        elif source.exists():
            shutil.copy(source, folder / name)
    return folder, [bind("/usr", "/usr")]


def tar_of(rootfs: Path) -> bytes:
    """The root file system as one layer."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.add(rootfs, arcname=".")
    return buffer.getvalue()


def write_oci_image(rootfs: Path, path: Path) -> Path:
    """The smallest image that containerd imports: OCI image layout specification 1.0."""
    layer = tar_of(rootfs)
    config = {
        "architecture": _ARCHITECTURES.get(platform.machine(), platform.machine()),
        "os": "linux",
        "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
    }
    config_blob = json.dumps(config).encode()
    manifest = {
        "schemaVersion": 2,
        "config": _descriptor("image.config.v1+json", config_blob),
        "layers": [_descriptor("image.layer.v1.tar", layer)],
    }
    manifest_blob = json.dumps(manifest).encode()
    named = _descriptor("image.manifest.v1+json", manifest_blob) | {"annotations": {"io.containerd.image.name": IMAGE}}
    files = {
        "oci-layout": b'{"imageLayoutVersion": "1.0.0"}',
        "index.json": json.dumps({"schemaVersion": 2, "manifests": [named]}).encode(),
        **{
            f"blobs/sha256/{_digest(blob).removeprefix('sha256:')}": blob
            for blob in (layer, config_blob, manifest_blob)
        },
    }
    with tarfile.open(path, "w") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return path


def _digest(blob: bytes) -> str:
    return f"sha256:{hashlib.sha256(blob).hexdigest()}"


def _descriptor(kind: str, blob: bytes) -> dict[str, Any]:
    return {"mediaType": f"application/vnd.oci.{kind}", "digest": _digest(blob), "size": len(blob)}


@dataclass
class Runc:
    """Containers of runc or crun alone."""

    folder: Path
    rootfs: Path
    tool: str = "runc"
    root: Path | None = None
    _started: list[tuple[str, str]] = field(default_factory=list)

    def start(
        self,
        container_id: str | None = None,
        *,
        memory_bytes: int | None = None,
        cgroup: str | None = None,
        shm_bytes: int = 64 * MIB,
        shm: bool = True,
        script: str = SCRIPT,
        rootfs: Path | None = None,
        annotations: dict[str, str] | None = None,
        mounts: Sequence[dict[str, Any]] = (),
        uid: int = 0,
    ) -> Box:
        """Create and start a container; `mounts` are further ones, as in its config.json."""
        container_id = container_id or f"rtdebug-{self.tool}-{uuid.uuid4().hex[:8]}"
        cgroup = cgroup or f"/{container_id}"
        bundle = self.folder / container_id
        bundle.mkdir()
        config = oci_config(rootfs or self.rootfs, script, cgroup, memory_bytes, shm_bytes if shm else None)
        config["mounts"] += mounts
        config["process"]["user"] = {"uid": uid, "gid": uid}
        (bundle / "config.json").write_text(json.dumps(config | {"annotations": annotations or {}}))
        self._started.append((container_id, cgroup))
        self._call("run", "--detach", "--bundle", bundle, container_id)
        pid = self._state(container_id)["pid"]
        box = Box(container_id, None, pid)
        return until_filled(box) if script == SCRIPT else box

    def pause(self, box: Box) -> None:
        """Freeze all of its processes."""
        self._call("pause", box.id)

    def resume(self, box: Box) -> None:
        """Undo pause()."""
        self._call("resume", box.id)

    def remove(self, box: Box) -> None:
        """Kill and delete it."""
        self._call("delete", "--force", box.id)

    def close(self) -> None:
        """Remove all that is left of what was started here."""
        for container_id, _ in self._started:
            with contextlib.suppress(AssertionError):  # removed by its test
                self._call("delete", "--force", container_id)
        for _, cgroup in self._started:
            remove_cgroups("/" + cgroup.split("/")[1])

    def _state(self, container_id: str) -> dict[str, Any]:
        state: dict[str, Any] = json.loads(self._call("state", container_id))
        return state

    def _call(self, *arguments: str | Path) -> str:
        root = ("--root", self.root) if self.root else ()
        return call(*_hybrid_remedy(self.tool), self.tool, *root, *arguments)


def _hybrid_remedy(tool: str) -> tuple[str, ...]:
    """crun refuses a hybrid host whose v2 hierarchy has a controller: hide that hierarchy from it."""
    unified = Path("/sys/fs/cgroup/unified")
    if tool != "crun" or not unified.is_dir():
        return ()
    return ("unshare", "--mount", "sh", "-c", f'umount {unified}; exec "$@"', "sh")


def oci_config(
    rootfs: Path, script: str, cgroup: str, memory_bytes: int | None, shm_bytes: int | None
) -> dict[str, Any]:
    """config.json of a bundle, OCI runtime specification."""
    tmpfs_options = ["nosuid", "noexec", "nodev", "mode=1777"]
    shm = {"destination": "/dev/shm", "type": "tmpfs", "source": "shm"}
    mounts: list[dict[str, Any]] = [
        {"destination": "/proc", "type": "proc", "source": "proc"},
        {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"]},
    ]
    if shm_bytes is not None:
        mounts.append(shm | {"options": [*tmpfs_options, f"size={shm_bytes >> 10}k"]})
    return {
        "ociVersion": "1.0.2",
        "process": {
            "cwd": "/", "args": ["/bin/sh", "-c", script], "user": {"uid": 0, "gid": 0}, "env": ["PATH=/bin"],
        },
        "root": {"path": str(rootfs)},
        "mounts": mounts,
        "linux": {
            "cgroupsPath": cgroup,
            "namespaces": [{"type": kind} for kind in ("pid", "mount", "ipc", "uts", "network")],
            "resources": {"memory": {"limit": memory_bytes}} if memory_bytes else {},
        },
    }  # fmt: skip


@dataclass
class Docker:
    """A dockerd of ours."""

    process: subprocess.Popen[bytes]
    socket: Path
    exec_root: Path
    cgroup: str

    def start(self, name: str, *, memory_bytes: int | None = None, shm_bytes: int = 64 * MIB) -> Box:
        """Run a container."""
        limit = ("--memory", str(memory_bytes)) if memory_bytes else ()
        container_id = self.call(
            "run", "--detach", "--network", "none", "--name", name, "--shm-size", str(shm_bytes), *limit,
            IMAGE, "/bin/sh", "-c", SCRIPT,
        ).strip()  # fmt: skip
        return until_filled(Box(container_id, name, int(self._inspect(container_id, "{{.State.Pid}}"))))

    def remove(self, box: Box) -> None:
        """Kill and delete it."""
        self.call("rm", "--force", box.id)

    def call(self, *arguments: str) -> str:
        """Run the docker client."""
        return call("docker", "--host", f"unix://{self.socket}", *arguments)

    def clear(self) -> None:
        """Kill and delete all containers."""
        self.process.send_signal(signal.SIGCONT)
        for container_id in self.call("ps", "--all", "--quiet").split():
            self.call("rm", "--force", container_id)

    def _inspect(self, container_id: str, form: str) -> str:
        return self.call("inspect", "--format", form, container_id).strip()


@contextlib.contextmanager
def running_dockerd(folder: Path, rootfs: Path) -> Iterator[Docker]:
    """Start dockerd (it brings its own containerd), with the image imported."""
    cgroup = f"/rtdebug-docker-{os.getpid()}"
    socket = folder / "sock"
    argv = (
        "dockerd", "--data-root", folder / "data", "--exec-root", folder / "exec",
        "--pidfile", folder / "pid", "--host", f"unix://{socket}", "--iptables=false", "--bridge=none",
        "--cgroup-parent", cgroup, "--exec-opt", "native.cgroupdriver=cgroupfs",
    )  # fmt: skip
    with daemon(argv, folder / "log") as process:
        docker = Docker(process, socket, folder / "exec", cgroup)
        version = ("docker", "--host", f"unix://{socket}", "version")
        wait_for(lambda: _succeeds(version), f"dockerd, see {folder}/log")
        layer = folder / "layer.tar"
        layer.write_bytes(tar_of(rootfs))
        docker.call("import", str(layer), IMAGE)
        try:
            yield docker
        finally:
            docker.clear()
    remove_cgroups(cgroup)


@dataclass
class Containerd:
    """A containerd of ours, with a namespace of ours."""

    socket: Path
    namespace: str
    cgroup: str

    def start(self, name: str, *, memory_bytes: int | None = None, labels: Sequence[str] = ()) -> Box:
        """Run a container; ctr's containers have /dev/shm with 64 MiB."""
        limit = ("--memory-limit", str(memory_bytes)) if memory_bytes else ()
        labelled = [part for label in labels for part in ("--label", label)]
        self.call(
            "run", "--detach", "--null-io", "--cgroup", f"{self.cgroup}/{name}", *limit, *labelled,
            IMAGE, name, "/bin/sh", "-c", SCRIPT,
        )  # fmt: skip
        task = next(line.split() for line in self.call("tasks", "list").splitlines() if line.startswith(f"{name} "))
        return until_filled(Box(name, None, int(task[1])))

    def kill(self, name: str) -> None:
        """End the container's task; the container stays."""
        with contextlib.suppress(AssertionError):  # ended by its test
            self.call("tasks", "delete", "--force", name)

    def call(self, *arguments: str) -> str:
        """Run ctr in the namespace."""
        return call("ctr", "--address", self.socket, "--namespace", self.namespace, *arguments)

    def clear(self) -> None:
        """Kill and delete all containers."""
        for name in self.call("containers", "list", "--quiet").split():
            self.kill(name)
            self.call("containers", "delete", name)


@contextlib.contextmanager
def running_containerd(folder: Path, rootfs: Path) -> Iterator[Containerd]:
    """Start containerd without its CRI plugin, with the image imported."""
    containerd = Containerd(folder / "sock", f"rtdebug-{os.getpid()}", f"/rtdebug-ctr-{os.getpid()}")
    config = f"""
version = 2
root = "{folder}/root"
state = "{folder}/state"
disabled_plugins = ["io.containerd.grpc.v1.cri"]
[grpc]
address = "{containerd.socket}"
"""
    (folder / "config.toml").write_text(config)
    image = write_oci_image(rootfs, folder / "image.tar")
    with daemon(("containerd", "--config", folder / "config.toml"), folder / "log"):
        version = ("ctr", "--address", str(containerd.socket), "version")
        wait_for(lambda: _succeeds(version), f"containerd, see {folder}/log")
        containerd.call("images", "import", str(image))
        try:
            yield containerd
        finally:
            containerd.clear()
    with contextlib.suppress(OSError):  # runc's root for our namespace
        Path("/run/containerd/runc", containerd.namespace).rmdir()
    remove_cgroups(containerd.cgroup)


@dataclass
class Podman:
    """podman with a store of ours. It has no daemon."""

    folder: Path
    cgroup: str

    def start(self, name: str, *, memory_bytes: int | None = None, shm_bytes: int = 64 * MIB) -> Box:
        """Run a container with runc."""
        limit = ("--memory", str(memory_bytes)) if memory_bytes else ()
        container_id = self.call(
            "run", "--detach", "--network", "none", "--name", name, "--shm-size", f"{shm_bytes}b", *limit,
            *_LIMITS, "--cgroup-parent", self.cgroup, IMAGE, "/bin/sh", "-c", SCRIPT,
        ).strip()  # fmt: skip
        pid = self.call("inspect", "--format", "{{.State.Pid}}", container_id).strip()
        return until_filled(Box(container_id, name, int(pid)))

    def clear(self) -> None:
        """Kill and delete all containers."""
        self.call("rm", "--all", "--force", "--time", "0")

    def call(self, *arguments: str) -> str:
        """Run podman on the store."""
        return call(
            "podman", "--root", self.folder / "root", "--runroot", self.folder / "run", "--tmpdir",
            self.folder / "tmp", "--cgroup-manager", "cgroupfs", "--runtime", "runc", *arguments,
        )  # fmt: skip


@contextlib.contextmanager
def podman_store(folder: Path, rootfs: Path) -> Iterator[Podman]:
    """A store with the image imported, taken down at the end."""
    podman = Podman(folder, f"/rtdebug-podman-{os.getpid()}")
    layer = folder / "layer.tar"
    layer.write_bytes(tar_of(rootfs))
    podman.call("import", str(layer), IMAGE)
    try:
        yield podman
    finally:
        podman.clear()
        for mount in read_mountinfo():
            if mount.mount_point.startswith(f"{folder}/"):
                call("umount", mount.mount_point)
    remove_cgroups(podman.cgroup)


def _succeeds(argv: Sequence[str]) -> bool:
    return subprocess.run(argv, capture_output=True, timeout=10, check=False).returncode == 0


def _needs(*programs: str) -> None:
    missing = [program for program in programs if shutil.which(program) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")


@pytest.fixture(scope="session")
def rootfs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root file system with busybox."""
    return make_rootfs(tmp_path_factory.mktemp("rtdebug-rootfs"))


@pytest.fixture
def runc(tmp_path: Path, rootfs: Path) -> Iterator[Runc]:
    """Plain runc, with its usual root."""
    _needs("runc")
    runc = Runc(tmp_path, rootfs)
    yield runc
    runc.close()


@pytest.fixture
def crun(tmp_path: Path, rootfs: Path) -> Iterator[Runc]:
    """Plain crun, with its usual root."""
    _needs("crun")
    crun = Runc(tmp_path, rootfs, tool="crun")
    yield crun
    crun.close()


@pytest.fixture(scope="session")
def dockerd(tmp_path_factory: pytest.TempPathFactory, rootfs: Path) -> Iterator[Docker]:
    """A dockerd for the whole session, started when a test first asks for it."""
    _needs("dockerd", "docker", "containerd")
    with running_dockerd(tmp_path_factory.mktemp("rtdebug-docker"), rootfs) as docker:
        yield docker


@pytest.fixture
def docker(dockerd: Docker) -> Iterator[Docker]:
    """docker; the test's containers are removed after it."""
    yield dockerd
    dockerd.clear()


@pytest.fixture(scope="session")
def containerd_daemon(tmp_path_factory: pytest.TempPathFactory, rootfs: Path) -> Iterator[Containerd]:
    """A containerd for the whole session, started when a test first asks for it."""
    _needs("containerd", "ctr")
    with running_containerd(tmp_path_factory.mktemp("rtdebug-containerd"), rootfs) as containerd:
        yield containerd


@pytest.fixture
def containerd(containerd_daemon: Containerd) -> Iterator[Containerd]:
    """containerd; the test's containers are removed after it."""
    yield containerd_daemon
    containerd_daemon.clear()


@pytest.fixture(scope="session")
def podman_with_image(tmp_path_factory: pytest.TempPathFactory, rootfs: Path) -> Iterator[Podman]:
    """A podman store for the whole session."""
    _needs("podman", "conmon", "runc")
    with podman_store(tmp_path_factory.mktemp("rtdebug-podman"), rootfs) as podman:
        yield podman


@pytest.fixture
def podman(podman_with_image: Podman) -> Iterator[Podman]:
    """podman; the test's containers are removed after it."""
    yield podman_with_image
    podman_with_image.clear()
