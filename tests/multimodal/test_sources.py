"""What a URL may point at, and which local files are read."""

from __future__ import annotations

import base64
import os
from pathlib import Path
from urllib.parse import quote

import pytest

from chiasm.errors import UserError
from chiasm.multimodal.local_files import read_local_file
from chiasm.multimodal.sources import MediaSource, RemoteUrl, parse_frames, parse_source

PARAM = "messages[0].content[1].image_url.url"


def parse(url, max_bytes=1000):
    return parse_source(url, max_bytes=max_bytes, param=PARAM)


def refusal(url, **kwargs):
    with pytest.raises(UserError) as caught:
        parse(url, **kwargs)
    assert caught.value.param == PARAM
    return caught.value


class TestSchemes:
    @pytest.mark.parametrize("url", ["http://a/b.png", "HTTPS://a", "https:x"])
    def test_remote(self, url):
        assert parse(url) == RemoteUrl(url)

    @pytest.mark.parametrize(
        "url",
        ["/etc/passwd", "etc/passwd", "", "../x.png", " data:,", "ftp://a/b", "gopher://a", "javascript:alert(1)",
         "C:\\x.png", "video/jpeg;base64,AA", "blob:https://a", "\x00file:///x", "://x", "s3://b/k"],
    )  # fmt: skip
    def test_others_are_refused_with_what_is_accepted(self, url):
        error = refusal(url)
        assert "must begin with http:, https:, data: or file:" in error.message
        assert error.status == 400

    def test_a_refusal_does_not_echo_the_request(self):
        assert len(refusal("ftp://" + "a" * 10**6).message) < 200


class TestData:
    @pytest.mark.parametrize(
        "header",
        ["image/png;base64", "IMAGE/PNG;BASE64", ";base64", "image/png;charset=utf-8;a=b;base64", ";a=b;base64"],
    )
    @pytest.mark.parametrize("scheme", ["data", "DATA", "Data"])
    def test_is_handed_on_undecoded(self, scheme, header):
        assert parse(f"{scheme}:{header},QUJD") == MediaSource("base64", b"QUJD")

    @pytest.mark.parametrize("rest", ["", "image/png", "image/png,QUJD", "image/png;base64", "base64,QUJD", "," * 5])
    def test_other_forms_are_refused(self, rest):
        assert "data:image/png;base64,<data>" in refusal(f"data:{rest}").message

    def test_a_long_header_is_not_searched(self):
        assert "must have the form" in refusal("data:" + ";a" * 10**6 + ";base64,QUJD").message

    def test_length_is_capped_before_decoding(self):
        assert parse("data:;base64," + base64.b64encode(b"x" * 1000).decode())
        error = refusal("data:;base64," + base64.b64encode(b"x" * 1003).decode())
        assert error.status == 422
        assert "at most 1336 characters of base64 (1000 bytes), got 1340" in error.message

    @pytest.mark.parametrize(
        "written",
        ["+/+/QUI=", "+/+/\nQUI=\n", " +/+/\r\n\tQUI=", "%2B%2F%2b%2fQUI%3D", "-_-_QUI=", "+_-/QUI%3d%0A%0d%20"],
    )
    def test_lines_escapes_and_the_alphabet_of_urls_are_read(self, written):
        assert parse(f"data:;base64,{written}") == MediaSource("base64", b"+/+/QUI=")
        frames = parse_frames(f"data:video/jpeg;base64,{written},{written}", max_bytes=100, max_frames=2)
        assert frames == MediaSource("frames", b"+/+/QUI=,+/+/QUI=")

    @pytest.mark.parametrize(
        "written", ["AB C", "AB  C", "%2FAB%20CD", "A B\nCDEF", "ABCD\nE F", "-_A C,QUJD", "ABCD EFGH"]
    )
    def test_spaces_that_may_have_been_a_plus_are_refused(self, written):
        assert "spaces within a line. Was a + decoded" in refusal(f"data:;base64,{written}").message
        with pytest.raises(UserError, match="spaces within a line"):
            parse_frames(f"data:video/jpeg;base64,QUJD,{written}", max_bytes=100, max_frames=3)

    def test_a_picture_whose_pluses_are_lost_is_refused(self):
        text = base64.b64encode(b"\xfb\xef\x00" * 6).decode()
        assert text.count("+") == 12  # a multiple of 4: what is left has a valid length
        assert "spaces within a line" in refusal("data:;base64," + text.replace("+", " ")).message

    def test_spaces_around_lines_and_frames_are_layout(self):
        assert parse("data:;base64,  ABCD \n   EFGH\r\n\tIJKL  ") == MediaSource("base64", b"ABCDEFGHIJKL")
        frames = parse_frames("data:video/jpeg;base64,ABCD , EFGH", max_bytes=100, max_frames=2)
        assert frames == MediaSource("frames", b"ABCD,EFGH")

    def test_a_long_text_with_spaces_is_refused(self):
        message = refusal("data:;base64,AA\n A" + "A" * 8_388_608, max_bytes=10**8).message
        assert "base64 with spaces may have at most 8388608 characters, got 8388613" in message

    def test_other_escapes_are_refused(self):
        assert "only those of + / = and spaces" in refusal("data:;base64,%41UJD").message

    def test_a_long_text_with_escapes_is_refused(self):
        assert (
            "8388608 characters, got 8388609"
            in refusal("data:;base64,%2B" + "A" * 8_388_606, max_bytes=10**8).message
        )

    def test_what_is_left_out_does_not_count(self):
        text = base64.encodebytes(b"\xff" * 1000).decode()
        assert parse(f"data:;base64,{text}") == MediaSource("base64", base64.b64encode(b"\xff" * 1000))
        assert parse("data:;base64," + "%2F" * 1336) == MediaSource("base64", b"/" * 1336)
        assert "got 1340" in refusal("data:;base64," + "%2F" * 1000 + "/" * 340).message
        assert refusal("data:;base64," + "\n" * 10_000).status == 422

    def test_what_is_not_ascii_is_refused(self):
        assert "not valid base64" in refusal("data:;base64,QÜ==").message
        assert "not valid base64" in refusal("data:;base64,\ud800").message


class TestFileUrls:
    @pytest.mark.parametrize(
        ("url", "path"),
        [
            ("file:///a/b.png", b"/a/b.png"),
            ("FILE://localhost/a%20b.png", b"/a b.png"),
            ("file:/a/b.png", b"/a/b.png"),
            ("file:///ü%FF", "/ü".encode() + b"\xff"),
            ("file:///a/%2e%2e/b", b"/a/../b"),
            ("file:///a%252e", b"/a%2e"),
            ("file:////etc", b"//etc"),
        ],
    )
    def test_paths(self, url, path):
        assert parse(url) == MediaSource("file", path)

    @pytest.mark.parametrize("url", ["file://host/a", "file://127.0.0.1/a", "file://user@localhost/a"])
    def test_hosts_are_refused(self, url):
        assert "another host" in refusal(url).message

    @pytest.mark.parametrize(
        "url", ["file:", "file:a.png", "file://", "file:///a?b", "file:///a#b", "file://localhost", "file:///a%00b",
                "file:///\ud800"]
    )  # fmt: skip
    def test_malformed_ones_are_refused(self, url):
        assert "file:" in refusal(url).message


class TestLocalFiles:
    @pytest.fixture
    def folder(self, tmp_path):
        (tmp_path / "secret.png").write_bytes(b"secret")
        folder = tmp_path / "allowed"
        (folder / "sub").mkdir(parents=True)
        (folder / "a b.png").write_bytes(b"picture")
        (folder / "inside.png").symlink_to(folder / "a b.png")
        (folder / "outside.png").symlink_to(tmp_path / "secret.png")
        (folder / "up").symlink_to(tmp_path)
        (folder / "loop").symlink_to(folder / "loop")
        os.mkfifo(folder / "pipe")
        (tmp_path / "allowed-not").mkdir()
        (tmp_path / "allowed-not" / "x.png").write_bytes(b"secret")
        return folder

    def read(self, folder, name, max_bytes=100):
        source = parse(f"file://{quote(str(folder))}/{name}")
        return read_local_file(source.payload, str(folder), max_bytes=max_bytes, param=PARAM)

    def refusal(self, *args, **kwargs):
        with pytest.raises(UserError) as caught:
            self.read(*args, **kwargs)
        assert caught.value.param == PARAM
        assert str(args[0]) not in caught.value.message
        return caught.value

    @pytest.mark.parametrize(
        "name", ["a%20b.png", "inside.png", "sub/../inside.png", "sub/%2e%2e/a%20b.png", "./inside.png"]
    )
    def test_files_below_the_folder_are_read(self, folder, name):
        assert self.read(folder, name) == b"picture"

    @pytest.mark.parametrize(
        "name",
        ["../secret.png", "%2e%2e/secret.png", "sub/../../secret.png", "..%2fsecret.png", "outside.png",
         "up/secret.png", "../allowed-not/x.png", "../does-not-exist", "sub/%2E%2E/%2E%2E/secret.png",
         "../../../../../../../../../../etc/passwd"],
    )  # fmt: skip
    def test_nothing_outside_is_read_or_told_about(self, folder, name):
        """Threat: local files (vLLM PR 43117)."""
        error = self.refusal(folder, name)
        assert error.message == "the file: URL leads out of the folder that this server allows."

    @pytest.mark.parametrize("swapped", ["sub", "sub/deep", "sub/deep/x.png"])
    def test_a_link_put_in_place_after_the_check_is_not_followed(self, folder, tmp_path, monkeypatch, swapped):
        """Threat: local files (vLLM PR 43117)."""
        for above in (folder, tmp_path / "outside"):
            (above / "sub" / "deep").mkdir(parents=True, exist_ok=True)
            (above / "sub" / "deep" / "x.png").write_bytes(b"picture" if above == folder else b"secret")
        assert self.read(folder, "sub/deep/x.png") == b"picture"
        resolve = Path.resolve

        def resolve_and_swap(path):
            found = resolve(path)
            if path.name == "x.png":
                (folder / swapped).rename(tmp_path / "away")
                (folder / swapped).symlink_to(tmp_path / "outside" / swapped)
            return found

        monkeypatch.setattr(Path, "resolve", resolve_and_swap)
        assert "can't be read" in self.refusal(folder, "sub/deep/x.png").message

    def test_no_descriptor_is_left_open(self, folder):
        before = len(list(Path("/proc/self/fd").iterdir()))
        self.read(folder, "sub/../inside.png")
        self.refusal(folder, "sub/missing.png")
        self.refusal(folder, "sub")
        assert len(list(Path("/proc/self/fd").iterdir())) == before

    @pytest.mark.parametrize("name", ["pipe", "sub", "", "missing.png", "loop", "a" * 300, "a%20b.png/x"])
    def test_only_regular_files_are_read(self, folder, name):
        assert self.refusal(folder, name).status == 400

    def test_size_is_capped(self, folder):
        assert self.read(folder, "inside.png", max_bytes=7) == b"picture"
        error = self.refusal(folder, "inside.png", max_bytes=6)
        assert (error.status, error.message) == (422, "the local file must be at most 6 bytes.")

    @pytest.mark.parametrize("allowed", [None, ""])
    def test_off_by_default(self, folder, allowed):
        with pytest.raises(UserError, match="--allowed-local-media-path"):
            read_local_file(bytes(folder / "inside.png"), allowed, max_bytes=100)

    def test_devices_are_refused(self):
        with pytest.raises(UserError, match="regular file"):
            read_local_file(b"/dev/zero", "/dev", max_bytes=100)
