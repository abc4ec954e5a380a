"""File operations by sandbox-init: no binary of the image, the sandbox's rights, all or nothing."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxd import init_protocol as protocol
from tests.support.init_harness import Finished, RawSandbox


@pytest.fixture(scope="module")
def sandbox(rootfs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RawSandbox]:
    with RawSandbox(rootfs, tmp_path_factory.mktemp("init") / "sandbox") as sandbox:
        sandbox.shell("mkdir -m 777 /w")
        yield sandbox


def error_of(done: Finished) -> int:
    """errno of a failed operation, 0 of a good one."""
    if done.code == 0:
        assert done.stderr == b""
        return 0
    assert done.code == 1, done
    error = protocol.decode_file_error(done.stderr)
    assert error is not None, done
    return error


def write(sandbox: RawSandbox, path: str, data: bytes, end: bool = True, **options: object) -> int:
    request = protocol.write_request(sandbox.exec_id(), path, **options)  # type: ignore[arg-type]
    frames = [data[at : at + 100_000] for at in range(0, len(data), 100_000)]
    stdin = b"".join(protocol.encode_upload_frame(frame) for frame in frames)
    return error_of(sandbox.run_request(request, stdin + (protocol.UPLOAD_END if end else b"")))


def read(sandbox: RawSandbox, path: str, **options: object) -> bytes:
    request = protocol.read_request(sandbox.exec_id(), path, **options)  # type: ignore[arg-type]
    done = sandbox.run_request(request)
    error = error_of(done)
    if error:
        raise OSError(error, os.strerror(error), path)
    return done.stdout


def records(done: Finished) -> tuple[list[protocol.FileRecord], bool]:
    assert error_of(done) == 0
    decoder = protocol.RecordDecoder()
    found: list[protocol.FileRecord] = []
    for at in range(0, len(done.stdout), 7):
        found += decoder.feed(done.stdout[at : at + 7])
    assert decoder.complete
    return found, decoder.truncated


def do(sandbox: RawSandbox, request: protocol.ExecRequest) -> int:
    return error_of(sandbox.run_request(request))


def test_write_and_read_back(sandbox: RawSandbox) -> None:
    data = os.urandom(3 << 20)
    assert write(sandbox, "/w/data", data, mode=0o640) == 0
    assert read(sandbox, "/w/data") == data
    assert read(sandbox, "/w/data", offset=1 << 20, length=10) == data[1 << 20 :][:10]
    assert read(sandbox, "/w/data", offset=10 << 20) == b""
    assert stat.S_IMODE((sandbox.upper / "w/data").stat().st_mode) == 0o640
    assert write(sandbox, "/w/empty", b"") == 0
    assert read(sandbox, "/w/empty") == b""


def test_replacing_keeps_mode_and_owner_and_follows_links(sandbox: RawSandbox) -> None:
    script = "cd /w && echo old > f && chown 5:6 f && chmod 751 f && ln -s f link"
    assert sandbox.shell(script).code == 0
    assert write(sandbox, "/w/link", b"new", mode=0o600) == 0
    done = sandbox.shell("stat -c '%u %g %a' /w/f; readlink /w/link; cat /w/f")
    assert done.stdout == b"5 6 751\nf\nnew"


def test_a_link_to_nothing_is_written_through(sandbox: RawSandbox) -> None:
    """As open(2) with O_CREAT does."""
    script = (
        "mkdir -p /w/n/d && cd /w/n && ln -s one first && ln -s d/two one"
        " && ln -s /w/n/abs absolute && ln -s none/f far && ln -s around round"
        " && ln -s round around && ln -s new/ slash && ln -s d directory"
    )
    assert sandbox.shell(script).code == 0
    assert write(sandbox, "/w/n/first", b"two", mode=0o640) == 0
    assert write(sandbox, "/w/n/absolute", b"abs", parents=True) == 0
    for name, error in (
        ("far", errno.ENOENT),
        ("round", errno.ELOOP),
        ("slash", errno.EISDIR),
        ("directory", errno.EISDIR),
    ):
        assert write(sandbox, f"/w/n/{name}", b"x", parents=True) == error, name
    done = sandbox.shell("cd /w/n; find . -type f | sort; readlink first; stat -c %a d/two")
    assert done.stdout == b"./abs\n./d/two\none\n640\n"
    assert read(sandbox, "/w/n/first") + read(sandbox, "/w/n/absolute") == b"twoabs"


def test_a_link_to_nothing_gives_nobody_rights(sandbox: RawSandbox) -> None:
    sandbox.shell("mkdir -m 700 /w/shut; ln -s /w/shut/f /w/way; ln -s ../../../etc/made /w/up")
    assert write(sandbox, "/w/way", b"x", user="1000") == errno.EACCES
    assert write(sandbox, "/w/up", b"x", user="1000") == errno.EACCES
    assert write(sandbox, "/w/up", b"x") == 0
    assert (sandbox.upper / "etc/made").read_bytes() == b"x"


@pytest.mark.parametrize("existing", [True, False])
def test_a_cut_upload_changes_nothing(sandbox: RawSandbox, existing: bool) -> None:
    sandbox.shell("rm -rf /w/cut; mkdir /w/cut" + ("; echo old > /w/cut/f" if existing else ""))
    assert write(sandbox, "/w/cut/f", b"half" * 1000, end=False) == errno.ECANCELED
    expected = b"f\nold\n" if existing else b""
    assert sandbox.shell("ls -A /w/cut; cat /w/cut/* 2>/dev/null").stdout == expected


def test_an_upload_killed_half_way_leaves_nothing(sandbox: RawSandbox) -> None:
    sandbox.shell("rm -rf /w/killed; mkdir /w/killed; echo old > /w/killed/f")
    stdin_read, stdin_write = os.pipe2(os.O_CLOEXEC)
    request = protocol.write_request(sandbox.exec_id(), "/w/killed/f")
    sandbox.start_request(request, protocol.ExecFds(stdin=stdin_read))
    os.close(stdin_read)
    os.write(stdin_write, protocol.encode_upload_frame(b"x" * 100))
    assert sandbox.client.kill(request.exec_id) == 0
    assert sandbox.client.wait_exit(request.exec_id).signal == 9
    assert sandbox.client.release(request.exec_id) == 0
    os.close(stdin_write)
    assert sandbox.shell("ls -A /w/killed; cat /w/killed/f").stdout == b"f\nold\n"


def test_parents(sandbox: RawSandbox) -> None:
    assert write(sandbox, "/w/p/a/b", b"x") == errno.ENOENT
    assert write(sandbox, "/w/p/a/b", b"x", parents=True) == 0
    make = protocol.mkdir_request
    assert do(sandbox, make(sandbox.exec_id(), "/w/q/r/s")) == errno.ENOENT
    assert do(sandbox, make(sandbox.exec_id(), "/w/q/r/s", parents=True, mode=0o2777)) == 0
    assert do(sandbox, make(sandbox.exec_id(), "/w/q/r/s", parents=True)) == 0
    assert do(sandbox, make(sandbox.exec_id(), "/w/q/r/s")) == errno.EEXIST
    assert do(sandbox, make(sandbox.exec_id(), "/w/p/a/b/c", parents=True)) == errno.ENOTDIR
    assert sandbox.shell("stat -c %a /w/q/r /w/q/r/s").stdout == b"755\n2777\n"


def test_the_users_rights_hold(sandbox: RawSandbox) -> None:
    sandbox.shell("echo secret > /w/secret; chmod 600 /w/secret; mkdir -m 700 /w/closed")
    with pytest.raises(PermissionError):
        read(sandbox, "/w/secret", user="1000")
    # The directory is writable for all: replacing the file would succeed if rename were all.
    assert write(sandbox, "/w/secret", b"x", user="1000") == errno.EACCES
    assert write(sandbox, "/w/closed/f", b"x", user="1000") == errno.EACCES
    assert write(sandbox, "/w/mine", b"x", user="1000:1000") == 0
    assert (sandbox.upper / "w/mine").stat().st_uid == 1000
    assert do(sandbox, protocol.remove_request(sandbox.exec_id(), "/etc/passwd", user="1")) == (
        errno.EACCES
    )


def test_only_regular_files_are_read_and_written(sandbox: RawSandbox) -> None:
    sandbox.shell("mkfifo /w/fifo")
    for path, error in (
        ("/w/fifo", errno.EINVAL),
        ("/dev/zero", errno.EINVAL),
        ("/w", errno.EISDIR),
        ("/no/such", errno.ENOENT),
    ):
        with pytest.raises(OSError) as caught:
            read(sandbox, path)
        assert caught.value.errno == error, path
    assert write(sandbox, "/w/fifo", b"x") == errno.EINVAL
    assert write(sandbox, "/w", b"x") == errno.EISDIR
    assert read(sandbox, "/proc/self/comm") == b"sandbox-init\n"


def test_stat(sandbox: RawSandbox) -> None:
    sandbox.shell("cd /w; printf 12345 > st; chown 8:9 st; chmod 4711 st; ln -s st st-link")
    found, _ = records(sandbox.run_request(protocol.stat_request(sandbox.exec_id(), "/w/st")))
    (record,) = found
    assert (record.path, record.size_bytes, record.uid, record.gid) == ("/w/st", 5, 8, 9)
    assert record.mode == stat.S_IFREG | 0o4711
    assert record.mtime_ns == (sandbox.upper / "w/st").stat().st_mtime_ns
    (link,), _ = records(
        sandbox.run_request(protocol.stat_request(sandbox.exec_id(), "/w/st-link"))
    )
    assert stat.S_ISLNK(link.mode) and link.target == "st"
    follow = protocol.stat_request(sandbox.exec_id(), "/w/st-link", follow=True)
    assert records(sandbox.run_request(follow))[0][0].size_bytes == 5
    missing = protocol.stat_request(sandbox.exec_id(), "/w/none")
    assert do(sandbox, missing) == errno.ENOENT


def test_list(sandbox: RawSandbox) -> None:
    sandbox.shell("rm -rf /w/l; mkdir -p /w/l/a/b/c; cd /w/l; touch a/b/c/deep 'n l\n'; ln -s / up")
    sandbox.shell("printf x > /w/l/$(printf '\\377')")

    def paths(depth: int, limit: int = 1000) -> tuple[set[str], bool]:
        request = protocol.list_request(sandbox.exec_id(), "/w/l", depth=depth, max_entries=limit)
        found, truncated = records(sandbox.run_request(request))
        return {record.path for record in found}, truncated

    top = {"a", "n l\n", "up", "\udcff"}
    assert paths(1) == (top, False)
    assert paths(2) == (top | {"a/b"}, False)
    assert paths(9) == (top | {"a/b", "a/b/c", "a/b/c/deep"}, False)
    found, truncated = paths(9, limit=3)
    assert len(found) == 3 and truncated
    assert do(sandbox, protocol.list_request(sandbox.exec_id(), "/w/st")) == errno.ENOTDIR


def test_a_long_list_is_whole(sandbox: RawSandbox) -> None:
    sandbox.shell(
        "mkdir /w/many; cd /w/many; i=0; while [ $i -lt 3000 ]; do : > name-$i; i=$((i+1)); done"
    )
    request = protocol.list_request(sandbox.exec_id(), "/w/many")
    found, truncated = records(sandbox.run_request(request))
    assert {record.path for record in found} == {f"name-{i}" for i in range(3000)}
    assert not truncated


def test_remove_never_follows_links(sandbox: RawSandbox) -> None:
    remove = protocol.remove_request
    sandbox.shell("rm -rf /w/r; mkdir -p /w/r/d/e /w/target; touch /w/r/d/f /w/target/kept")
    sandbox.shell("ln -s /w/target /w/r/d/link; ln -s /w/target /w/r/top-link; mkdir /w/r/none")
    assert do(sandbox, remove(sandbox.exec_id(), "/w/r/d")) == errno.ENOTEMPTY
    assert do(sandbox, remove(sandbox.exec_id(), "/w/r/none")) == 0
    assert do(sandbox, remove(sandbox.exec_id(), "/w/r/top-link", recursive=True)) == 0
    assert do(sandbox, remove(sandbox.exec_id(), "/w/r", recursive=True)) == 0
    assert do(sandbox, remove(sandbox.exec_id(), "/w/r", recursive=True)) == errno.ENOENT
    assert sandbox.shell("ls /w/target").stdout == b"kept\n"


def test_rename_and_chmod(sandbox: RawSandbox) -> None:
    rename = protocol.rename_request
    sandbox.shell("cd /w; echo a > ra; echo b > rb")
    no_replace = rename(sandbox.exec_id(), "/w/ra", "/w/rb", no_replace=True)
    assert do(sandbox, no_replace) == errno.EEXIST
    assert do(sandbox, rename(sandbox.exec_id(), "/w/ra", "/w/rb")) == 0
    assert do(sandbox, protocol.chmod_request(sandbox.exec_id(), "/w/rb", 0o400)) == 0
    assert sandbox.shell("cat /w/rb; stat -c %a /w/rb; ls /w/ra").stdout == b"a\n400\n"


def test_relative_paths_start_at_the_directory(sandbox: RawSandbox) -> None:
    assert write(sandbox, "rel", b"here", cwd="/w") == 0
    assert read(sandbox, "/w/rel") == b"here"
