"""What is read of the cgroups: files by name, and only those that are harmless to read."""

from rtdebug.containers.model import Container
from rtdebug.snapshot.cgroups import read_cgroups
from tests.unit.trees import make_host, write_files


def test_huge_pages_of_every_size(tmp_path):
    """Their sizes differ by machine and page size: 2MB on x86-64, 64KB and 32MB on arm64, 1MB on s390x."""
    host = make_host(tmp_path)
    files = {
        "cgroup.procs": "7\n",
        "memory.stat": "anon 5\n",
        "hugetlb.64KB.current": "65536\n",
        "hugetlb.32MB.current": "0\n",
        "hugetlb.32MB.rsvd.current": "1\n",
        "hugetlb.32MB.max": "max\n",
        "pids.current": "1\n",
    }
    write_files(tmp_path / "cgroup/box", files)
    host.add_process(7, "/box")
    (record, *_) = read_cgroups(Container("x", None, None, 7, "running", "/box"), host.hierarchy, host.roots.proc)
    assert record.path == "/box" and record.memory is not None
    assert {name for name in record.files if name.startswith("hugetlb")} == {
        "hugetlb.64KB.current",
        "hugetlb.32MB.current",
    }
    assert record.files["pids.current"] == "1\n"
