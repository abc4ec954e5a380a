"""OCI layouts and archives of `docker save`: layers, whiteouts, configuration, and lies in them."""

from __future__ import annotations

import gzip
import io
import json
import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sandboxd.errors import (
    ImageNotFound,
    InvalidRequest,
    TooLarge,
    Unsupported,
    VenusError,
)
from sandboxd.images import ImageBounds, ImageStore
from sandboxd.storage import Collection, PlainStore
from tests.support.image_archives import (
    INDEX,
    MANIFEST,
    Archive,
    archive,
    digest_of,
    directory,
    docker_archive,
    file,
    hard_link,
    layout,
    link,
    zstd,
)
from tests.support.image_store import assert_nothing_left, root_of, store_of

pytestmark = pytest.mark.unit

LOWER = archive(
    directory("etc"),
    file("etc/kept", b"lower"),
    file("etc/gone"),
    file("etc/changed", b"lower"),
    directory("var/cache"),
    file("var/cache/old/deep"),
    directory("was-directory"),
    file("was-directory/inside"),
    file("was-file"),
    link("lib", "usr/lib"),
)
UPPER = archive(
    # What hides lower files may come before or after what the layer itself has.
    file("etc/.wh.gone", b""),
    file("etc/changed", b"upper"),
    file("var/cache/new"),
    file("var/cache/.wh..wh..opq", b""),
    link("was-directory", "/elsewhere"),
    directory("was-file"),
    file("was-file/inside"),
    hard_link("etc/again", "etc/changed"),
    file(".wh..wh.plnk/1.2", b"x"),
    ("dev/null", tarfile.CHRTYPE, ""),
)
CONFIG = {
    "Env": ["PATH=/opt/bin:/bin", "A=b=c", "EMPTY="],
    "WorkingDir": "/srv/work",
    "User": "1000:50",
    "Entrypoint": ["/bin/entry"],
    "Cmd": ["serve", "--all"],
}


def assert_merged(root: Path) -> None:
    found = {
        os.path.relpath(os.path.join(where, name), root)
        for where, _, names in os.walk(root)
        for name in names
    }
    assert found == {
        "etc/kept", "etc/changed", "etc/again", "var/cache/new", "was-file/inside",
        "lib", "was-directory",
    }  # fmt: skip
    assert (root / "etc/kept").read_text() == "lower"
    assert (root / "etc/changed").read_text() == "upper"
    assert (root / "etc/again").stat().st_ino == (root / "etc/changed").stat().st_ino
    assert os.readlink(root / "was-directory") == "/elsewhere"
    assert (root / "srv/work").is_dir()


@pytest.mark.parametrize("pack", ["", "+gzip", "+zstd"])
def test_layers_of_a_layout_are_applied_in_order(
    images: ImageStore, tmp_path: Path, pack: str
) -> None:
    made = layout([LOWER, UPPER], CONFIG, pack).write(tmp_path / "layout")
    image = images.import_directory("made", made)
    assert_merged(root_of(images, "made"))
    assert image.source == "oci layout"
    assert image.defaults.env == {"PATH": "/opt/bin:/bin", "A": "b=c", "EMPTY": ""}
    assert (image.defaults.cwd, image.defaults.user) == ("/srv/work", "1000:50")
    assert image.defaults.entrypoint == ("/bin/entry",)
    assert image.defaults.command == ("serve", "--all")
    assert images.get("made") == image


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstd])
def test_an_archive_is_told_by_what_it_holds(
    images: ImageStore, volumes: PlainStore, pack: Callable[[bytes], bytes]
) -> None:
    """Its digest is the same however it is stored."""
    docker = images.import_tar(
        "docker", io.BytesIO(pack(docker_archive([LOWER, UPPER], CONFIG).tar()))
    )
    oci = images.import_tar("oci", io.BytesIO(pack(layout([LOWER, UPPER], CONFIG).tar())))
    assert docker.source == "docker archive" and oci.source == "oci layout"
    assert docker.digest == oci.digest is not None
    assert docker.defaults == oci.defaults
    for name in ("docker", "oci"):
        assert_merged(root_of(images, name))
        # What it came in has gone.
        place = volumes.path(Collection.IMAGES, name)
        assert set(os.listdir(place)) == {"image.json", "rootfs"}


def test_a_root_filesystem_may_have_files_of_these_names(images: ImageStore) -> None:
    data = archive(file("manifest.json", b'{"name": "app"}'), file("index.json", b"{}"))
    image = images.import_tar("app", io.BytesIO(data))
    assert image.source == "tar" and (root_of(images, "app") / "manifest.json").exists()


def test_a_layer_that_comes_twice_may_be_a_link(images: ImageStore) -> None:
    made = docker_archive([LOWER, LOWER])
    entries = [file(name, content) for name, content in made.files.items()]
    entries[1] = link("1/layer.tar", "../0/layer.tar")
    image = images.import_tar("twice", io.BytesIO(archive(*entries)))
    assert (root_of(images, "twice") / "etc/gone").exists() and image.entries > 0


@pytest.mark.parametrize("target", ["/etc/passwd", "../../../../../etc/passwd", "../1/layer.tar"])
def test_a_link_out_of_the_archive_is_not_followed(
    images: ImageStore, volumes: PlainStore, target: str
) -> None:
    made = docker_archive([LOWER, b""])
    entries = [file(name, content) for name, content in made.files.items()]
    entries[1] = link("1/layer.tar", target)
    with pytest.raises(InvalidRequest):
        images.import_tar("out", io.BytesIO(archive(*entries)))
    assert_nothing_left(images, volumes)


@pytest.mark.parametrize("steps", [["../../outside.tar"], ["../step", "../outside.tar"]])
def test_nor_is_one_to_a_layer_that_would_fit(
    images: ImageStore, volumes: PlainStore, tmp_path: Path, steps: list[str]
) -> None:
    (tmp_path / "outside.tar").write_bytes(LOWER)
    made = docker_archive([LOWER]).write(tmp_path / "archive")
    (made / "0/layer.tar").unlink()
    (made / "0/layer.tar").symlink_to(steps[0])
    if len(steps) > 1:
        (made / "step").symlink_to(steps[1])
    with pytest.raises(InvalidRequest):
        images.import_directory("out", made)
    assert_nothing_left(images, volumes)


def test_what_is_no_file_is_not_read(
    images: ImageStore, volumes: PlainStore, tmp_path: Path
) -> None:
    """A fifo would be waited for, for ever."""
    made = layout([LOWER]).write(tmp_path / "layout")
    for blob in (made / "blobs/sha256").iterdir():
        if blob.read_bytes()[:2] == b"\x1f\x8b":
            blob.unlink()
            os.mkfifo(blob)
    with pytest.raises(InvalidRequest, match="no regular file"):
        images.import_directory("fifo", made)
    assert_nothing_left(images, volumes)


@pytest.mark.parametrize(
    "entries",
    [
        [file("lib/.wh.escape", b"")],
        [file("lib/.wh..wh..opq", b"")],
        [file(".wh.lib/x", b""), file("lib/.wh.escape", b"")],
    ],
)
def test_a_whiteout_does_not_go_through_a_link(
    images: ImageStore, tmp_path: Path, entries: list[Any]
) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "escape").write_text("untouched")
    lower = archive(link("lib", str(victim)))
    made = layout([lower, archive(*entries)]).write(tmp_path / "layout")
    images.import_directory("links", made)
    assert (victim / "escape").read_text() == "untouched"


@pytest.mark.parametrize(
    "entries",
    [
        [file(".wh...", b"")],
        [file(".wh.", b"")],
        [file("../.wh.x", b"")],
        [file("lib/escape")],
        [hard_link("copy", "lib/passwd")],
        [file("../escape")],
    ],
)
def test_a_layer_cannot_leave_the_tree(
    images: ImageStore, volumes: PlainStore, tmp_path: Path, entries: list[Any]
) -> None:
    lower = archive(link("lib", "/etc"))
    made = layout([lower, archive(*entries)]).write(tmp_path / "layout")
    with pytest.raises(InvalidRequest):
        images.import_directory("bad", made)
    assert_nothing_left(images, volumes)


def _flip(made: Archive, name: str, old: bytes, new: bytes) -> None:
    assert old in made.files[name]
    made.files[name] = made.files[name].replace(old, new)


def _blob_with(made: Archive, part: bytes) -> str:
    return next(name for name, content in made.files.items() if part in content and "/" in name)


def test_digests_are_verified(images: ImageStore, volumes: PlainStore, tmp_path: Path) -> None:
    def refused(made: Archive, match: str) -> None:
        with pytest.raises(InvalidRequest, match=match):
            images.import_tar("bad", io.BytesIO(made.tar()))
        assert_nothing_left(images, volumes)

    made = layout([LOWER], CONFIG, pack="")
    _flip(made, _blob_with(made, b"diff_ids"), b"serve", b"abuse")
    refused(made, "not what its name says")

    made = layout([LOWER], CONFIG, pack="")
    _flip(made, _blob_with(made, b'"layers": '), b'"size"', b'"Size"')
    refused(made, "not what its name says")

    for layers in ([LOWER], [UPPER, LOWER]):
        made = layout(layers, CONFIG, pack="")
        _flip(made, _blob_with(made, b"etc/kept"), b"lower", b"loser")
        refused(made, "its content has the digest")

    # A blob that is what its name says, but not the layer that the configuration names.
    made = layout([gzip.compress(LOWER)], CONFIG, pack="")
    refused(made, "its content has the digest")

    made = docker_archive([LOWER], CONFIG)
    _flip(made, "0/layer.tar", b"lower", b"loser")
    refused(made, "its content has the digest")
    made = docker_archive([LOWER], CONFIG)
    name = next(name for name in made.files if len(name) == 69)
    _flip(made, name, b"serve", b"abuse")
    refused(made, "not what its name says")


@pytest.mark.parametrize("part", [0.2, 0.6, 0.95])
@pytest.mark.parametrize("pack", ["+gzip", "+zstd"])
def test_a_cut_layer_is_no_image(
    images: ImageStore, volumes: PlainStore, part: float, pack: str
) -> None:
    made = Archive()
    whole = archive(file("a", os.urandom(100_000)))
    made.index(made.image([whole], pack=pack))
    [blob] = [n for n, c in made.files.items() if c[:2] in (b"\x1f\x8b", b"\x28\xb5")]
    made.files[blob] = made.files[blob][: int(part * len(made.files[blob]))]
    with pytest.raises(VenusError):
        images.import_tar("cut", io.BytesIO(made.tar()))
    assert_nothing_left(images, volumes)


def test_the_image_for_this_machine_is_chosen(images: ImageStore) -> None:
    made = Archive()
    other = {"platform": {"os": "linux", "architecture": "arm64"}}
    own = {"platform": {"os": "linux", "architecture": "amd64"}}
    unknown = {"platform": {"os": "unknown", "architecture": "unknown"}}
    nested = made.document(
        {
            "manifests": [
                made.image([UPPER], **other),
                made.image([LOWER], **own),
                made.document({"layers": []}, MANIFEST, **unknown),
            ]
        },
        INDEX,
    )  # fmt: skip
    made.index(nested, nested)
    images.import_tar("own", io.BytesIO(made.tar()))
    assert (root_of(images, "own") / "etc/kept").exists()
    made = Archive()
    made.index(made.image([UPPER], **other))
    with pytest.raises(ImageNotFound, match="linux/arm64"):
        images.import_tar("other", io.BytesIO(made.tar()))


def test_an_image_of_another_machine_is_refused(images: ImageStore) -> None:
    made = docker_archive([LOWER])
    name = next(name for name in made.files if len(name) == 69)
    content = made.files.pop(name).replace(b"amd64", b"s390x")
    made.files["x.json"] = content
    _flip(made, "manifest.json", name.encode(), b"x.json")
    with pytest.raises(Unsupported, match="linux/s390x"):
        images.import_tar("other", io.BytesIO(made.tar()))


def test_several_images_in_one_archive_are_named(images: ImageStore) -> None:
    made = Archive()
    note = "org.opencontainers.image.ref.name"
    made.index(
        made.image([LOWER], annotations={note: "first"}),
        made.image([UPPER], annotations={note: "second"}),
    )
    with pytest.raises(InvalidRequest, match="2: first; second"):
        images.import_tar("two", io.BytesIO(made.tar()))
    made = docker_archive([LOWER], tag="first:1")
    other = docker_archive([UPPER], tag="second:1")
    both = json.loads(made.files["manifest.json"]) + json.loads(other.files["manifest.json"])
    made.files |= {**other.files, "manifest.json": json.dumps(both).encode()}
    with pytest.raises(InvalidRequest, match="2: first:1; second:1"):
        images.import_tar("two", io.BytesIO(made.tar()))


@pytest.mark.parametrize(
    ("config", "what"),
    [
        ({"Env": [f"V{number}=" for number in range(1025)]}, "Env"),
        ({"Env": ["A=" + "x" * (33 << 10)]}, "Env"),
        ({"Env": ["=x"]}, "Env"),
        ({"Env": ["A=\0"]}, "Env"),
        ({"Env": "A=b"}, "Env"),
        ({"Env": [1]}, "Env"),
        ({"Env": ["A=\ud800"]}, "Env"),
        ({"User": "a/b"}, "User"),
        ({"User": "x" * 200}, "User"),
        ({"WorkingDir": "/" + "x" * 5000}, "WorkingDir"),
        ({"WorkingDir": ["/"]}, "WorkingDir"),
        ({"Cmd": ["x" * (65 << 10)]}, "Cmd"),
    ],
)
def test_a_configuration_that_cannot_hold(
    images: ImageStore, volumes: PlainStore, config: dict[str, Any], what: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        images.import_tar("odd", io.BytesIO(layout([LOWER], config).tar()))
    assert refused.value.object == what
    assert_nothing_left(images, volumes)


def test_documents_that_are_none(images: ImageStore, volumes: PlainStore) -> None:
    digest = {"digest": digest_of(b"none"), "mediaType": "x"}
    for index in (
        b"[" * 100_000,
        b"[]",
        b"{",
        b'{"manifests": {}}',
        b'{"manifests": []}',
        json.dumps({"manifests": [digest] * 2000}).encode(),
        json.dumps({"manifests": [{"digest": "sha256:../../../etc/passwd"}]}).encode(),
        json.dumps({"manifests": [{"digest": "md5:" + "0" * 64}]}).encode(),
        json.dumps({"manifests": [digest]}).encode(),
        b" " * (5 << 20),
    ):
        made = Archive({"oci-layout": b"{}", "index.json": index})
        with pytest.raises(VenusError) as refused:
            images.import_tar("bad", io.BytesIO(made.tar()))
        assert refused.value.http_status in (400, 404)
    assert_nothing_left(images, volumes)


def test_indexes_that_lead_to_each_other(images: ImageStore) -> None:
    made = Archive()
    manifest = made.image([LOWER])
    for _ in range(5):
        manifest = made.document({"manifests": [manifest]}, INDEX)
    made.index(manifest)
    with pytest.raises(InvalidRequest, match="indexes lead to it"):
        images.import_tar("deep", io.BytesIO(made.tar()))


def test_what_an_image_may_hold_is_bounded(
    volumes: PlainStore, images: ImageStore, tmp_path: Path
) -> None:
    """Also where what is sent is small: zeros, and layers that take each other away."""
    bomb = archive(file("zeros", bytes(8 << 20)))
    small = store_of(volumes, ImageBounds(max_bytes=4 << 20, max_entries=100, max_layers=3))
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/zeros").write_bytes(bytes(5 << 20))
    for pack in (gzip.compress, zstd, bytes):
        with pytest.raises(TooLarge, match="more than 4194304 bytes"):
            small.import_tar("bomb", io.BytesIO(pack(bomb)))
    for kind in ("+gzip", "+zstd"):
        with pytest.raises(TooLarge, match="more than 4194304 bytes"):
            small.import_tar("bomb", io.BytesIO(layout([bomb], pack=kind).tar()))
    with pytest.raises(TooLarge, match="more than 4194304 bytes"):
        small.import_directory("bomb", tmp_path / "tree")
    with pytest.raises(TooLarge, match="more than 100 entries"):
        small.import_tar("many", io.BytesIO(archive(*(file(f"f{n}", b"") for n in range(101)))))
    upper = archive(*(file(f".wh.f{n}", b"") for n in range(101)))
    with pytest.raises(TooLarge, match="more than 100 entries"):
        small.import_tar("many", io.BytesIO(layout([LOWER, upper]).tar()))
    with pytest.raises(InvalidRequest, match="at most 3"):
        small.import_tar("deep", io.BytesIO(layout([LOWER] * 4).tar()))
    assert_nothing_left(images, volumes)


def test_an_image_in_use_has_its_defaults_at_hand(images: ImageStore) -> None:
    """Those of the image that has the name now."""
    for user in ("first", "second"):
        images.import_tar("base", io.BytesIO(layout([LOWER], {"User": user}).tar()))
        images.acquire("base")
        assert images.defaults("base").user == user
        images.release("base")
        images.remove("base")
