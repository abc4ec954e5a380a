"""Images: what a hostile archive or a cut stream cannot do, and what an honest one becomes."""

from __future__ import annotations

import gzip
import io
import os
import stat
import tarfile
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from sandboxd.errors import Conflict, ImageNotFound, InternalError, InvalidRequest, VenusError
from sandboxd.images import ImageStore
from sandboxd.storage import Collection, PlainStore
from tests.support.image_archives import Entry, archive, directory, file, hard_link, link
from tests.support.image_store import assert_nothing_left, root_of

pytestmark = pytest.mark.unit


def test_an_honest_archive(images: ImageStore) -> None:
    data = archive(
        directory("./"),
        directory("./usr/bin"),
        link("./bin", "usr/bin"),
        file("./usr/bin/tool", b"#!"),
        hard_link("./usr/bin/again", "./usr/bin/tool"),
        link("./etc/absolute", "/etc/passwd"),
        ("./run/pipe", tarfile.FIFOTYPE, ""),
        ("./dev/null", tarfile.CHRTYPE, ""),
        file("./" + "long/" * 60 + "name"),
        file("./naïve\udcff"),
    )
    image = images.import_tar("base", io.BytesIO(data))
    root = root_of(images, "base")
    assert os.readlink(root / "bin") == "usr/bin"
    assert (root / "usr/bin/tool").stat().st_ino == (root / "usr/bin/again").stat().st_ino
    assert stat.S_IMODE((root / "usr/bin/tool").stat().st_mode) == 0o640
    assert (root / "usr/bin/tool").stat().st_mtime == 1_600_000_000
    assert (root / "usr/bin").stat().st_mtime == 1_600_000_000
    assert os.readlink(root / "etc/absolute") == "/etc/passwd"
    assert stat.S_ISFIFO((root / "run/pipe").stat().st_mode)
    assert not (root / "dev/null").exists()
    assert (root / ("long/" * 60) / "name").read_text() == "content"
    assert images.list() == [image] == [images.get("base")]
    assert image.digest is not None
    assert image.digest.startswith("sha256:")


def test_gzip_and_trailing_bytes_are_read_to_the_end(images: ImageStore) -> None:
    stream = io.BytesIO(gzip.compress(archive(file("a"))))
    images.import_tar("zipped", stream)
    stream = io.BytesIO(archive(file("a")) + bytes(1 << 20))
    images.import_tar("padded", stream)
    assert stream.read() == b""


@pytest.mark.parametrize(
    "entries",
    [
        [file("../escape")],
        [file("a/../../escape")],
        [link("out", "/tmp"), file("out/escape")],
        [link("out", ".."), file("out/escape")],
        [link("out", "../.."), directory("out/escape")],
        [directory("a"), link("a/b", "../.."), file("a/b/escape")],
        [link("out", "/etc"), hard_link("copy", "out/passwd")],
        [hard_link("copy", "../../../../etc/passwd")],
        [hard_link("copy", "missing")],
        [directory("a"), hard_link("b", "a")],
        [directory("a"), file("a/x"), file("a")],
        [("x" * 10 + "/" * 0 + "/y" * 300, tarfile.REGTYPE, b"deep")],
        [link("empty", "")],
    ],
)
def test_entries_that_would_leave_the_image(
    images: ImageStore, volumes: PlainStore, tmp_path: Path, entries: list[Entry]
) -> None:
    with pytest.raises(InvalidRequest):
        images.import_tar("bad", io.BytesIO(archive(*entries)))
    assert_nothing_left(images, volumes)
    assert not list(tmp_path.rglob("*escape*"))


def test_an_absolute_name_is_taken_as_inside(images: ImageStore) -> None:
    images.import_tar("base", io.BytesIO(archive(file("/etc/passwd-of-image"))))
    assert (root_of(images, "base") / "etc/passwd-of-image").exists()


def test_a_link_is_replaced_and_not_written_through(images: ImageStore, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("untouched")
    data = archive(
        link("name", str(victim)), file("name", b"new"), link("d", "/tmp"), directory("d")
    )
    images.import_tar("base", io.BytesIO(data))
    assert victim.read_text() == "untouched"
    assert (root_of(images, "base") / "name").read_text() == "new"
    assert not (root_of(images, "base") / "d").is_symlink()


def test_ids_that_no_sandbox_has(images: ImageStore, volumes: PlainStore) -> None:
    with pytest.raises(InvalidRequest, match="above 65535"):
        images.import_tar("bad", io.BytesIO(archive(file("a"), uid=65536)))
    assert_nothing_left(images, volumes)


@pytest.mark.parametrize("part", [0.0, 0.001, 0.01, 0.02, 0.5, 0.9])
def test_a_cut_stream_is_no_image(images: ImageStore, volumes: PlainStore, part: float) -> None:
    plain = archive(file("a", b"x" * 2000), file("b", os.urandom(200_000)), file("c"))
    for whole in (plain, gzip.compress(plain)):
        with pytest.raises(VenusError):
            images.import_tar("cut", io.BytesIO(whole[: int(part * len(whole))]))
    assert_nothing_left(images, volumes)


def test_a_cut_between_two_entries_is_noticed(images: ImageStore, volumes: PlainStore) -> None:
    data = archive(file("a", b"x" * 512), file("b"), format=tarfile.GNU_FORMAT)
    with pytest.raises(InvalidRequest):
        images.import_tar("cut", io.BytesIO(data[:1024]))
    assert_nothing_left(images, volumes)


def test_headers_cannot_take_memory(images: ImageStore, volumes: PlainStore) -> None:
    for kind in (tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.XGLTYPE):
        entry = tarfile.TarInfo("header")
        entry.type, entry.size = kind, 1 << 40
        with pytest.raises(InvalidRequest, match="extension header"):
            images.import_tar("bad", io.BytesIO(entry.tobuf(tarfile.GNU_FORMAT) + bytes(10240)))
    sparse = tarfile.TarInfo("sparse")
    sparse.type = tarfile.GNUTYPE_SPARSE
    with pytest.raises(InvalidRequest, match="sparse"):
        images.import_tar("bad", io.BytesIO(sparse.tobuf(tarfile.GNU_FORMAT) + bytes(10240)))
    assert_nothing_left(images, volumes)


def extension(kind: bytes, **values: str) -> bytes:
    content = b""
    for name, value in values.items():
        text = f" {name.replace('__', '.')}={value}\n".encode()
        size = len(text) + 1
        while len(str(size)) + len(text) != size:
            size += 1
        content += str(size).encode() + text
    entry = tarfile.TarInfo("header")
    entry.type, entry.size = kind, len(content)
    return entry.tobuf(tarfile.GNU_FORMAT) + content + bytes(-len(content) % 512)


@pytest.mark.parametrize(
    ("extensions", "cause"),
    [
        (extension(tarfile.XHDTYPE, comment="x") * 5000, "in a row"),
        (extension(tarfile.XGLTYPE, comment="x") * 5000, "in a row"),
        (extension(tarfile.XHDTYPE, GNU__sparse__size=str(1 << 50)), "sparse"),
        (extension(tarfile.XHDTYPE, GNU__sparse__map="0,1", GNU__sparse__size="9"), "sparse"),
        (extension(tarfile.XHDTYPE, path="x" * 300), "longer than"),
        (extension(tarfile.XHDTYPE, size="-512"), "it ends within"),
    ],
)
def test_extensions_that_a_parser_chokes_on(
    images: ImageStore, volumes: PlainStore, extensions: bytes, cause: str
) -> None:
    data = extensions + archive(file("a", b"x"), format=tarfile.GNU_FORMAT)
    with pytest.raises(InvalidRequest, match=cause):
        images.import_tar("bad", io.BytesIO(data))
    assert_nothing_left(images, volumes)


def test_global_headers_do_not_add_up(images: ImageStore, volumes: PlainStore) -> None:
    one = archive(file("a", b""), format=tarfile.GNU_FORMAT)[:512]
    data = b"".join(
        extension(tarfile.XGLTYPE, **{f"key{index}": "x" * 100_000}) + one for index in range(20)
    )
    with pytest.raises(InvalidRequest, match="global headers"):
        images.import_tar("bad", io.BytesIO(data + bytes(10240)))
    assert_nothing_left(images, volumes)


@pytest.mark.parametrize("time", ["inf", "nan", "1e300", "-1e300"])
def test_times_that_no_filesystem_has(images: ImageStore, time: str) -> None:
    entry = archive(("d", tarfile.DIRTYPE, b""), file("d/a"), format=tarfile.GNU_FORMAT)
    images.import_tar("odd", io.BytesIO(extension(tarfile.XHDTYPE, mtime=time) + entry))


def test_a_directory_of_the_host(images: ImageStore, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "etc").mkdir(parents=True)
    (source / "etc/file").write_text("text")
    os.link(source / "etc/file", source / "etc/other")
    (source / "etc/link").symlink_to("/nowhere")
    os.chmod(source / "etc/file", 0o4711)
    image = images.import_directory("copy", source)
    root = root_of(images, "copy")
    assert (root / "etc/file").read_text() == "text"
    assert stat.S_IMODE((root / "etc/file").stat().st_mode) == 0o4711
    assert (root / "etc/file").stat().st_ino == (root / "etc/other").stat().st_ino
    assert os.readlink(root / "etc/link") == "/nowhere"
    assert image.digest is None
    with pytest.raises(InvalidRequest):
        images.import_directory("none", tmp_path / "missing")


def test_names(images: ImageStore) -> None:
    for name in ("", "..", "a/b", "UPPER", ".x", "x" * 65):
        with pytest.raises(InvalidRequest):
            images.import_tar(name, io.BytesIO(archive(file("a"))))
    with pytest.raises(ImageNotFound):
        images.get("missing")
    with pytest.raises(ImageNotFound):
        images.acquire("missing")
    with pytest.raises(ImageNotFound):
        images.remove("missing")


def test_an_image_is_never_replaced_and_not_removed_in_use(images: ImageStore) -> None:
    images.import_tar("base", io.BytesIO(archive(file("a"))))
    with pytest.raises(Conflict, match="exists"):
        images.import_tar("base", io.BytesIO(archive(file("b"))))
    images.acquire("base")
    images.acquire("base")
    images.release("base")
    with pytest.raises(Conflict, match="in use"):
        images.remove("base")
    images.release("base")
    images.remove("base")
    assert images.list() == []


class SlowStream(io.RawIOBase):
    """Gives an archive, but waits in the middle of it until it may go on."""

    def __init__(self, data: bytes) -> None:
        self._data = io.BytesIO(data)
        self.reading, self.may_end = threading.Event(), threading.Event()

    def read(self, size: int = -1) -> bytes:
        self.reading.set()
        self.may_end.wait(10)
        return self._data.read(size)


def test_one_import_of_a_name_at_a_time_and_nothing_half(images: ImageStore) -> None:
    slow = SlowStream(archive(file("a")))
    importing = threading.Thread(target=lambda: images.import_tar("base", slow))  # type: ignore[arg-type]
    importing.start()
    assert slow.reading.wait(10)
    with pytest.raises(Conflict, match="being imported"):
        images.import_tar("base", io.BytesIO(archive(file("b"))))
    with pytest.raises(ImageNotFound):
        images.acquire("base")
    assert images.list() == []
    slow.may_end.set()
    importing.join(10)
    assert [image.name for image in images.list()] == ["base"]


def test_what_a_killed_import_left_goes_at_the_next_start(
    images: ImageStore, volumes: PlainStore
) -> None:
    volumes.create(Collection.INCOMING, "token", None)
    images.open()
    assert_nothing_left(images, volumes)


@pytest.fixture
def fake_mmdebstrap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts a shell script in the place of mmdebstrap; `$TAR` is a good archive."""
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "good.tar").write_bytes(archive(file("etc/debian_version")))
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")

    def install(script: str) -> None:
        program = programs / "mmdebstrap"
        program.write_text(f"#!/bin/sh\nTAR={programs}/good.tar\n{script}\n")
        program.chmod(0o755)

    return install


def test_a_bootstrap_reports_and_becomes_an_image(
    images: ImageStore, fake_mmdebstrap: Callable[[str], None]
) -> None:
    fake_mmdebstrap('echo "I: $*" >&2; cat $TAR')
    lines: list[str] = []
    image = images.build_base("base", None, ["procps", "tar"], lines.append)
    assert image.source == "mmdebstrap bookworm procps tar"
    assert len(lines) == 1
    assert "--include=procps,tar" in lines[0]
    assert lines[0].endswith(" bookworm -")


def test_a_failed_bootstrap_is_no_image_even_if_its_archive_was_whole(
    images: ImageStore, volumes: PlainStore, fake_mmdebstrap: Callable[[str], None]
) -> None:
    fake_mmdebstrap("cat $TAR; echo 'E: no such package' >&2; exit 25")
    with pytest.raises(InternalError, match=r"exit status 25.*no such package"):
        images.build_base("base", "bookworm", [], lambda line: None)
    assert_nothing_left(images, volumes)


def test_a_bootstrap_that_dies_midway_names_its_own_cause(
    images: ImageStore, volumes: PlainStore, fake_mmdebstrap: Callable[[str], None]
) -> None:
    fake_mmdebstrap("head -c 100 $TAR; echo 'E: mirror is gone' >&2; exit 1")
    with pytest.raises(VenusError, match="mirror is gone"):
        images.build_base("base", "bookworm", [], lambda line: None)
    assert_nothing_left(images, volumes)


@pytest.mark.parametrize(("suite", "package"), [("--help", "x"), ("bookworm", "a,b"), ("b", "-x")])
def test_arguments_cannot_be_options(images: ImageStore, suite: str, package: str) -> None:
    with pytest.raises(InvalidRequest):
        images.build_base("base", suite, [package], lambda line: None)


def test_what_is_unused_goes_and_what_is_used_stays(
    images: ImageStore, volumes: PlainStore
) -> None:
    for name in ("used", "fresh", "old"):
        images.import_tar(name, io.BytesIO(archive(file("a"))))
    images.acquire("used")
    for name in ("used", "old"):
        os.utime(volumes.path(Collection.IMAGES, name) / "image.json", (0, 0))
    assert images.prune(0, pulled_only=True) == []
    assert [each.name for each in images.prune(3600, pulled_only=False)] == ["old"]
    images.release("used")  # from here on it counts
    assert images.prune(3600, pulled_only=False) == []
    assert {each.name for each in images.prune(0, pulled_only=False)} == {"used", "fresh"}
    assert_nothing_left(images, volumes)


def test_nobody_gets_an_image_that_is_about_to_go(
    images: ImageStore, volumes: PlainStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    images.import_tar("base", io.BytesIO(archive(file("a"))))
    rename = volumes.rename
    refused = []

    def attempt(source: tuple[Collection, str], target: tuple[Collection, str]) -> None:
        with pytest.raises(ImageNotFound, match="being removed"):
            images.acquire("base")
        refused.append(source)
        rename(source, target)

    monkeypatch.setattr(volumes, "rename", attempt)
    assert [each.name for each in images.prune(0, pulled_only=False)] == ["base"]
    assert refused == [(Collection.IMAGES, "base")]
    assert_nothing_left(images, volumes)
