"""Downloads: whom they may reach, and what a hostile host can't do to us."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import ssl
import threading
import time
import zlib
from ipaddress import ip_address
from pathlib import Path

import pytest

from chiasm.config.engine import MediaConfig
from chiasm.errors import UserError
from chiasm.multimodal.addresses import is_public
from chiasm.multimodal.downloads import DownloadGauge, RequestEndedError
from chiasm.multimodal.fetch import MediaFetcher
from chiasm.multimodal.remote_url import parse_remote_url
from tests.clocks import PATIENCE, pass_time
from tests.multimodal.remote import PUBLIC, Host, Names, answer, fetcher, redirect

CERTIFICATE = Path(__file__).with_name("media_test.pem")
PARAM = "messages[0].content[1].image_url.url"

INSIDE = (
    "127.0.0.1", "127.255.255.254", "0.0.0.0", "0.1.2.3", "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1",
    "169.254.169.254", "100.64.0.1", "100.100.100.200", "192.0.0.192", "192.0.2.1", "198.18.0.1", "198.51.100.7",
    "203.0.113.9", "224.0.0.1", "239.255.255.250", "240.0.0.1", "255.255.255.255", "168.63.129.16",
    "::", "::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "::127.0.0.1", "::ffff:0:127.0.0.1",
    "64:ff9b::127.0.0.1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::8.8.8.8", "2002:7f00:1::", "2002:a9fe:a9fe::1",
    "2002:c0a8:101::", "2001::1", "2001:0:7f00:1::", "fe80::1", "fe80::1%1", "fec0::1", "fc00::1", "fd00:ec2::254",
    "ff02::1", "2001:db8::1", "100::1", "5f00::1",
)  # fmt: skip
OUTSIDE = (
    "8.8.8.8", "1.1.1.1", PUBLIC, "172.15.0.1", "172.32.0.1", "100.63.0.1", "100.128.0.1", "2606:2800:21f:cb07::1",
    "::ffff:8.8.8.8", "64:ff9b::8.8.8.8", "2002:808:808::", "2a00:1450::1",
)  # fmt: skip


@pytest.mark.parametrize("address", INSIDE)
def test_addresses_inside(address):
    assert not is_public(ip_address(address))


@pytest.mark.parametrize("address", OUTSIDE)
def test_addresses_outside(address):
    assert is_public(ip_address(address))


class TestUrls:
    @pytest.mark.parametrize(
        ("url", "host_and_port", "target"),
        [
            ("http://a.example", "a.example:80", "/"),
            ("HTTPS://A.Example.:8443/x?y=1#z", "a.example:8443", "/x?y=1"),
            ("https://a.example?q", "a.example:443", "/?q"),
            ("http://bücher.example/ü%20%41?ß", "xn--bcher-kva.example:80", "/%C3%BC%20%41?%C3%9F"),
            ("http://my_host/a@b:c", "my_host:80", "/a@b:c"),
            ("http://8.8.8.8/", "8.8.8.8:80", "/"),
            ("http://[2606:2800:21F:CB07:0:0:0:1]/", "[2606:2800:21f:cb07::1]:80", "/"),
            ("http://\uff11\uff12\uff17.0.0.1/", "127.0.0.1:80", "/"),
            ("http://127\u30020\u30020\u30021/", "127.0.0.1:80", "/"),
            ("http://ⓛocalhost/", "localhost:80", "/"),
            ("http://a.example/..//%2e%2e/x", "a.example:80", "/..//%2e%2e/x"),
        ],
    )
    def test_parsed(self, url, host_and_port, target):
        parsed = parse_remote_url(url)
        assert (parsed.host_and_port, parsed.target) == (host_and_port, target)

    @pytest.mark.parametrize(
        "url",
        [
            "http:", "http://", "http:///x", "http:/a.example", "http:a.example", "http://?x", "http://#x",
            "http://a:b@c.example/", "http://user@c.example/", "http://allowed.example\\@127.0.0.1/",
            "http://allowed.example%40127.0.0.1/", "http://a.example\\b", "http://a.example:80:80/",
            "http://a.example:/", "http://a.example:0/", "http://a.example:65536/", "http://a.example:-1/",
            "http://a.example:\uff11/", "http://a b.example/", "http://a.example/a b", "http://a.example/\t",
            "http://a.example/\r\nX: y", "\nhttp://a.example/", "http://a.example/\0", "http://.example/",
            "http://a..example/", "http://-a.example/", "http://a-.example/", "http://" + "a" * 64 + ".example/",
            "http://" + "a." * 130 + "example/", "http://a.example/" + "x" * 9000, "http://[::1/", "http://::1/",
            "http://[::1]x/", "http://[fe80::1%25eth0]/", "http://[1.2.3.4]/", "http://[]/", "http://%31%32%37.0.0.1/",
            "http://2130706433/", "http://0/", "http://127.1/", "http://127.0.1/", "http://0177.0.0.1/",
            "http://0x7f.0.0.1/", "http://0x7f000001/", "http://017700000001/", "http://127.0.0.1.1/",
            "http://127.0.0.0x1/", "http://1.2.3.256/", "http://00000127.0.0.1/", "http://a.0x/", "http://4294967296/",
            "http://xn--/\u0080", "http://a.example/\ud800", "http://\ud800.example/", "http://a\u200b\u2028.example/",
            "http://*.example/", "http://a.example;b/", "http://a,b/", "http://$(id)/",
        ],
    )  # fmt: skip
    def test_refused(self, url):
        with pytest.raises(UserError, match="malformed") as caught:
            parse_remote_url(url, param=PARAM)
        assert (caught.value.status, caught.value.param) == (422, PARAM)


def run(script, url, *, modality="image", **kwargs):
    """Fetch ``url`` where every address leads to one scripted host; returns body or error, host and network."""

    async def main():
        async with Host(*script).serve() as host:
            made, network = fetcher(host, **kwargs)
            try:
                outcome = await made.fetch(url, PARAM, modality=modality)
            except UserError as error:
                outcome = error
            return outcome, host, network

    return asyncio.run(main())


def check_refused(outcome, status, message, *, may_pass=False):
    assert isinstance(outcome, UserError), outcome
    assert outcome.may_pass == may_pass
    assert message in outcome.message
    assert (outcome.status, outcome.param) == (status, PARAM)


class TestReach:
    @pytest.mark.parametrize("address", [address for address in INSIDE if "%" not in address])
    def test_no_connection_to_an_inside_address(self, address):
        url = f"http://[{address}]:8000/x.png" if ":" in address else f"http://{address}:8000/x.png"
        outcome, host, network = run([answer()], url)
        check_refused(outcome, 400, "not public")
        assert (host.connections, network.dialled) == (0, [])

    @pytest.mark.parametrize("address", INSIDE)
    def test_no_connection_to_a_name_of_an_inside_address(self, address):
        outcome, host, network = run([answer()], "https://media.test/x.png", names=Names(media_test=[address]))
        check_refused(outcome, 400, "not public")
        assert (host.connections, network.dialled) == (0, [])

    @pytest.mark.parametrize(
        "host_form",
        ["localhost", "LOCALHOST", "localhost.", "127.0.0.1", "[::1]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "0",
         "2130706433", "0x7f000001", "017700000001", "127.1", "\uff11\uff12\uff17.0.0.1",
         "127\u30020\u30020\u30021", "ⓛocalhost",
         "0.0.0.0", "[::]", "user@127.0.0.1", "allowed.example\\@127.0.0.1", "allowed.example#@127.0.0.1",
         "allowed.example%23@127.0.0.1", "[64:ff9b::7f00:1]", "[2002:7f00:1::]"],
    )  # fmt: skip
    def test_the_real_network_is_not_touched(self, host_form):
        """As served: the system's resolver and plain TCP, against a canary that listens on loopback."""

        async def main():
            async with Host(answer()).serve() as canary:
                with pytest.raises(UserError) as caught:
                    await MediaFetcher(MediaConfig()).fetch(f"http://{host_form}:{canary.port}/x.png", PARAM)
                return caught.value.status, canary.connections

        assert asyncio.run(main()) in ((400, 0), (422, 0))

    def test_one_inside_address_among_several_is_enough(self):
        names = Names(media_test=[[PUBLIC, "10.0.0.1"]])
        outcome, _, network = run([answer()], "http://media.test/", names=names)
        check_refused(outcome, 400, "not public")
        assert network.dialled == []

    def test_unknown_hosts(self):
        outcome, _, _ = run([answer()], "http://nowhere.test/")
        check_refused(outcome, 422, "host is unknown")

    def test_exactly_the_checked_address_is_dialled(self):
        names = Names(media_test=[PUBLIC, "127.0.0.1"])
        outcome, host, network = run([answer()], "http://Media.Test:8080/a?b", names=names)
        assert outcome == b"picture"
        assert network.dialled == [(PUBLIC, 8080)]
        assert names.asked == ["media.test"]
        assert host.requests[0].startswith("GET /a?b HTTP/1.1\r\nHost: media.test:8080\r\n")

    def test_an_answer_that_changes_is_checked_anew_on_a_redirect(self):
        names = Names(media_test=[PUBLIC, "127.0.0.1"])
        outcome, _, network = run([redirect("/again")], "http://media.test/", names=names)
        check_refused(outcome, 400, "not public")
        assert network.dialled == [(PUBLIC, 80)]

    def test_the_next_address_is_tried(self):
        second = "2606:2800:21f:cb07::1"

        async def main():
            async with Host(answer()).serve() as host:
                made, network = fetcher(host, Names(media_test=[[PUBLIC, second]]))
                connect, port = network.connect_tcp, host.port

                async def first_is_down(address, *args):
                    host.port = 1 if address == PUBLIC else port
                    return await connect(address, *args)

                network.connect_tcp = first_is_down
                return await made.fetch("http://media.test/"), network.dialled

        assert asyncio.run(main()) == (b"picture", [(PUBLIC, 80), (second, 80)])

    def test_no_proxy_of_the_environment_is_used(self, monkeypatch):
        for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, "http://127.0.0.1:1")
        outcome, _, network = run([answer()], "http://media.test/")
        assert outcome == b"picture"
        assert network.dialled == [(PUBLIC, 80)]


class TestAdmittedHosts:
    def test_by_address_and_port(self):
        async def main():
            async with Host(answer()).serve() as host:
                media = MediaConfig(allowed_media_hosts=(f"127.0.0.1:{host.port}",))
                body = await MediaFetcher(media).fetch(f"http://127.0.0.1:{host.port}/")
                with pytest.raises(UserError, match="not public"):
                    await MediaFetcher(media).fetch(f"http://127.0.0.1:{host.port + 1 if host.port < 65535 else 1}/")
                return body

        assert asyncio.run(main()) == b"picture"

    @pytest.mark.parametrize("entry", ["inside.test:8000", "Inside.TEST.:8000"])
    def test_by_name(self, entry):
        names = Names(inside_test=["10.0.0.7"])
        outcome, _, network = run([answer()], "http://INSIDE.test:8000/", names=names, allowed_media_hosts=(entry,))
        assert outcome == b"picture"
        assert network.dialled == [("10.0.0.7", 8000)]

    @pytest.mark.parametrize("url", ["http://inside.test/", "http://sub.inside.test:8000/", "http://10.0.0.7:8000/"])
    def test_only_exactly(self, url):
        names = Names(inside_test=["10.0.0.7"], sub_inside_test=["10.0.0.7"])
        outcome, _, _ = run([answer()], url, names=names, allowed_media_hosts=("inside.test:8000",))
        check_refused(outcome, 400, "not public")

    @pytest.mark.parametrize(
        "entry", ["inside.test", "inside.test/x:80", "http://inside.test:80", "a b:80", ":80", "*:80", "a:0"]
    )
    def test_malformed_settings_are_refused(self, entry):
        with pytest.raises(UserError) as caught:
            MediaFetcher(MediaConfig(allowed_media_hosts=(entry,)))
        assert caught.value.param == "allowed_media_hosts"
        assert caught.value.message.startswith("allowed_media_hosts must be of the form host:port")
        assert caught.value.message.endswith(f"got {entry!r}.")


class TestRedirects:
    def test_three_are_followed(self):
        names = Names(media_test=[PUBLIC], other_test=["8.8.8.8"])
        script = [redirect("/b"), redirect("//other.test/c", "307 T"), redirect("http://media.test:81/d", "301 M")]
        outcome, host, network = run([*script, answer()], "http://media.test/a", names=names)
        assert outcome == b"picture"
        assert network.dialled == [(PUBLIC, 80), (PUBLIC, 80), ("8.8.8.8", 80), (PUBLIC, 81)]
        assert [request.split()[1] for request in host.requests] == ["/a", "/b", "/c", "/d"]

    def test_a_fourth_is_not(self):
        outcome, host, _ = run([redirect("/")], "http://media.test/")
        check_refused(outcome, 422, "redirects more than 3 times")
        assert host.connections == 4

    @pytest.mark.parametrize(
        ("location", "status"),
        [
            ("http://127.0.0.1:8000/", 400), ("//127.0.0.1/", 400), ("http://[::1]/", 400),
            ("http://169.254.169.254/latest/meta-data/", 400), ("http://localhost/", 422),
            ("http://2130706433/", 422), ("file:///etc/passwd", 422), ("ftp://media.test/", 422),
            ("data:image/png;base64,AAAA", 422), ("http://a@media.test/", 422), ("http://[::1/", 422),
            ("http://media.test\\@127.0.0.1/", 422), ("http://\xff.test/", 422),
        ],
    )  # fmt: skip
    def test_each_hop_is_checked(self, location, status):
        outcome, host, network = run([redirect(location), answer()], "http://media.test/")
        assert isinstance(outcome, UserError)
        assert (outcome.status, outcome.param) == (status, PARAM)
        assert host.connections == len(network.dialled) == 1

    def test_a_redirect_without_a_place_is_a_refusal(self):
        outcome, _, _ = run([answer(status="302 Found")], "http://media.test/")
        check_refused(outcome, 422, "answered 302")


BODY = b"picture" * 50_000
RAW = zlib.compressobj(wbits=-zlib.MAX_WBITS)
DEFLATED = RAW.compress(BODY) + RAW.flush()


def encoded(coding, body):
    return answer(body, headers=[f"Content-Encoding: {coding}"])


class TestCodings:
    """Hosts are asked for bodies as they are, and some send them encoded all the same."""

    @pytest.mark.parametrize(
        ("coding", "body"),
        [
            ("gzip", gzip.compress(BODY)), ("GZIP", gzip.compress(BODY)), ("x-gzip", gzip.compress(BODY)),
            ("gzip", gzip.compress(BODY[:9]) + gzip.compress(BODY[9:]) + b"\0" * 9), ("deflate", zlib.compress(BODY)),
            ("deflate", DEFLATED), ("identity", BODY), ("", BODY), ("utf-8", BODY), ("aws-chunked", BODY),
            ("identity, gzip", gzip.compress(BODY)), ("aws-chunked,gzip", gzip.compress(BODY)),
        ],
    )  # fmt: skip
    def test_decoded(self, coding, body):
        assert run([encoded(coding, body)], "http://media.test/")[0] == BODY

    def test_in_small_pieces(self):
        async def pieces(writer):
            body = gzip.compress(bytes(range(256)) * 9)
            writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\nContent-Encoding: gzip\r\n\r\n".encode())
            for start in range(0, len(body), 9):
                writer.write(body[start : start + 9])
                await writer.drain()
                await asyncio.sleep(0.001)

        assert run([pieces], "http://media.test/")[0] == bytes(range(256)) * 9

    @pytest.mark.parametrize("coding", ["br", "zstd", "compress", "BR", "identity, br", "gzip, br"])
    def test_others_are_named(self, coding):
        outcome, _, _ = run([encoded(coding, b"picture")], "http://media.test/")
        name = coding.split(", ")[-1].lower()
        check_refused(outcome, 422, f"its host sends it encoded with {name}; only gzip and deflate are decoded.")

    def test_several_are_refused(self):
        twice = gzip.compress(gzip.compress(BODY))
        check_refused(run([encoded("gzip, gzip", twice)], "http://media.test/")[0], 422, "several times over")
        headers = ["Content-Encoding: gzip", "Content-Encoding: gzip"]
        check_refused(run([answer(twice, headers=headers)], "http://media.test/")[0], 422, "several times over")

    @pytest.mark.parametrize("coding", ["gzip", "deflate"])
    @pytest.mark.parametrize("body", [b"\x89PNG\r\n\x1a\n" * 20, b"\xff\xd8\xff\xe0" * 20])
    def test_what_is_not_encoded_as_it_says(self, coding, body):
        outcome, _, _ = run([encoded(coding, body)], "http://media.test/")
        check_refused(outcome, 422, f"what isn't encoded with {coding}, though its Content-Encoding says so")

    @pytest.mark.parametrize(
        ("coding", "body"), [("gzip", gzip.compress(BODY)), ("deflate", zlib.compress(BODY)), ("deflate", DEFLATED)]
    )
    def test_cut_short(self, coding, body):
        for kept in (0, 1, len(body) // 2, len(body) - 1):
            outcome, _, _ = run([encoded(coding, body[:kept])], "http://media.test/")
            check_refused(outcome, 422, "broke off", may_pass=True)

    @pytest.mark.parametrize("wrapped", [gzip.compress, zlib.compress])
    def test_bombs_are_cut_off(self, wrapped):
        """Threat: unbounded media (GHSA-p6g9-7v3x-m8mv): a short body that is decoded to a long one."""
        coding = "gzip" if wrapped is gzip.compress else "deflate"
        bomb = wrapped(bytes(50_000_000))
        assert len(bomb) < 100_000
        outcome, _, _ = run([encoded(coding, bomb)], "http://media.test/", max_media_bytes=10**6)
        check_refused(outcome, 422, "at most 1000000 bytes")
        empty = gzip.compress(b"") * 60_000
        outcome, _, _ = run([encoded("gzip", empty)], "http://media.test/", max_media_bytes=10**6)
        check_refused(outcome, 422, "at most 1000000 bytes")

    def test_what_is_decoded_is_held(self):
        async def main():
            async with Host(encoded("gzip", gzip.compress(bytes(10_000)))).serve() as host:
                made, _ = fetcher(host)
                with DownloadGauge(5_000).request() as held:
                    await made.fetch("http://media.test/", PARAM, held=held)

        with pytest.raises(UserError, match="at most 5000 bytes together"):
            asyncio.run(main())


class TestBodies:
    @pytest.mark.parametrize(
        ("status", "may_pass"),
        [("404 Not Found", False), ("403 Forbidden", False), ("204 No Content", False), ("304 Not Modified", False),
         ("408 Timeout", True), ("429 Too Many", True), ("500 Oops", True), ("503 Busy", True)],
    )  # fmt: skip
    def test_other_statuses(self, status, may_pass):
        body = b"" if status[:3] in ("204", "304") else b"secret reason"
        outcome, _, _ = run([answer(body, status)], "http://media.test/")
        check_refused(outcome, 422, f"answered {status[:3]}.", may_pass=may_pass)
        assert "secret" not in outcome.message

    def test_the_limit_is_exact(self):
        assert run([answer(b"x" * 1000)], "http://media.test/", max_media_bytes=1000)[0] == b"x" * 1000
        outcome, _, _ = run([answer(b"x" * 1001)], "http://media.test/", max_media_bytes=1000)
        check_refused(outcome, 422, "at most 1000 bytes")

    def test_an_endless_body_is_cut_off(self):
        """Threat: unbounded media (GHSA-p6g9-7v3x-m8mv)."""

        async def endless(writer):
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            while True:
                writer.write(b"10000\r\n" + b"x" * 65536 + b"\r\n")
                await writer.drain()

        outcome, _, _ = run([endless], "http://media.test/", max_media_bytes=10**6, fetch_timeout=PATIENCE)
        check_refused(outcome, 422, "at most 1000000 bytes")

    def test_a_stated_length_is_not_believed(self):
        too_short = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n" + b"x" * 100_000
        assert run([too_short], "http://media.test/")[0] == b"x" * 5
        too_long = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n" + b"x" * 100
        check_refused(run([too_long], "http://media.test/")[0], 422, "broke off", may_pass=True)
        no_length = b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 100
        assert run([no_length], "http://media.test/")[0] == b"x" * 100

    @pytest.mark.parametrize(
        "script",
        [b"", b"\0" * 100, b"HTTP/1.1 200", b"SSH-2.0-x\r\n",
         b"HTTP/1.1 200 OK\r\n" + b"a" * 20_000, b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
         b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"],
    )  # fmt: skip
    def test_what_is_not_http(self, script):
        check_refused(run([script], "http://media.test/")[0], 422, "can't be reached or broke off", may_pass=True)

    def test_a_host_that_is_down(self):
        async def main():
            async with Host().serve() as host:
                made, _ = fetcher(host)
            with pytest.raises(UserError) as caught:
                await made.fetch("http://media.test/", PARAM)
            return caught.value

        check_refused(asyncio.run(main()), 422, "can't be reached", may_pass=True)

    @pytest.mark.parametrize(("modality", "seconds"), [("image", "0.2"), ("video", "0.3")])
    def test_videos_have_their_own_time(self, modality, seconds):
        async def silent(_writer):
            await asyncio.sleep(0.5)

        limits = {"fetch_timeout": 0.2, "video_fetch_timeout": 0.3}
        outcome, _, _ = run([silent], "http://media.test/", modality=modality, **limits)
        check_refused(outcome, 422, f"within {seconds} seconds", may_pass=True)

    @pytest.mark.parametrize(
        ("modality", "named", "others"), [("image", "image/png", "image/*"), ("video", "video/mp4", "video/*")]
    )
    def test_hosts_are_told_what_is_hoped_for(self, modality, named, others):
        _, host, _ = run([redirect("/x"), answer()], "http://media.test/", modality=modality)
        for request in host.requests:
            (accept,) = [line[8:] for line in request.splitlines() if line.startswith("Accept: ")]
            ranges = [entry.split(";")[0] for entry in accept.split(", ")]
            assert ranges[0].startswith(modality)
            assert named in ranges
            assert ranges[-2:] == [others, "*/*"]
            assert "Accept-Encoding: identity" in request

    @pytest.mark.parametrize("head", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"])
    def test_one_deadline_covers_a_trickle(self, head):
        async def trickle(writer):
            writer.write(head)
            while True:
                writer.write(b"x")
                await writer.drain()
                await asyncio.sleep(0.02)

        outcome, _, _ = run([trickle], "http://media.test/", fetch_timeout=0.3)
        check_refused(outcome, 422, "within 0.3 seconds", may_pass=True)

    def test_one_deadline_covers_a_slow_resolver_and_redirects(self):
        class Slow(Names):
            async def __call__(self, host, port):
                await pass_time(400)
                return await super().__call__(host, port)

        names = Slow(media_test=[PUBLIC])
        outcome, host, _ = run([redirect("/")], "http://media.test/", names=names, fetch_timeout=600)
        check_refused(outcome, 422, "within 600 seconds", may_pass=True)
        assert host.connections == 1

    def test_no_limit_is_kept_after_many_failures(self):
        """Slots of concurrent downloads come back, whatever the outcome."""

        async def main():
            async with Host(answer()).serve() as host:
                made, _ = fetcher(host)
                failures = [made.fetch("http://nowhere.test/") for _ in range(100)]
                await asyncio.gather(*failures, return_exceptions=True)
                return await made.fetch("http://media.test/")

        assert asyncio.run(main()) == b"picture"


def chunked(*pieces):
    """The bytes of an answer whose body comes in these pieces."""
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in (*pieces, b""))


def without_end(start, repeated):
    """Sends ``start`` and then the same until the other side has enough."""

    async def send(writer):
        writer.write(start)
        while True:
            writer.write(repeated * 5000)
            await writer.drain()

    return send


TINY_PIECES = without_end(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\na\r\n")
HINTS = without_end(b"", b"HTTP/1.1 103 Early Hints\r\nLink: <a>\r\n\r\n")
HEADERS = without_end(b"HTTP/1.1 200 OK\r\n", b"X: a\r\n")


class TestCostlyHosts:
    """HTTP is parsed in Python: a host decides how many steps its answer takes, and we how many we make."""

    @pytest.mark.parametrize(
        ("pieces", "is_taken"),
        [([b"a"] * 64, True), ([b"a"] * 65, False), ([b"a"] * 64 + [b"a" * 512] * 200, True),
         ([b"a" * 512] * 200, True), ([b"a" * 255] * 20_000, False)],
    )  # fmt: skip
    def test_pieces_may_be_small_or_many(self, pieces, is_taken):
        outcome, _, _ = run([chunked(*pieces)], "http://media.test/")
        if is_taken:
            assert outcome == b"".join(pieces)
        else:
            check_refused(outcome, 422, "its host sends it in too small pieces")

    @pytest.mark.parametrize("head", [HINTS, HEADERS])
    def test_what_comes_before_the_body_is_bounded(self, head):
        outcome, _, _ = run([head], "http://media.test/")
        check_refused(outcome, 422, "its host sends more than 32768 bytes before the media")

    def test_a_few_hints_and_long_headers_are_taken(self):
        hint = b"HTTP/1.1 103 Early Hints\r\nLink: <a>\r\n\r\n"
        assert run([hint * 10 + answer(headers=["X: " + "a" * 20_000])], "http://media.test/")[0] == b"picture"

    @pytest.mark.parametrize("script", [TINY_PIECES, HINTS, HEADERS])
    def test_the_servers_event_loop_goes_on(self, script):
        """Threat: costly hosts: every request would wait while the answer of one media host is parsed."""

        async def main():
            async with Host(script).serve() as host:
                made, _ = fetcher(host)
                await asyncio.gather(made.fetch("http://media.test/"), return_exceptions=True)  # imports
                fetches = asyncio.gather(
                    *[made.fetch("http://media.test/") for _ in range(8)], return_exceptions=True
                )
                longest, last = 0.0, time.thread_time()  # the loop's own work, however busy the machine is
                while not fetches.done():
                    await asyncio.sleep(0.001)
                    longest, last = max(longest, time.thread_time() - last), time.thread_time()
                return await fetches, longest

        outcomes, longest = asyncio.run(main())
        assert all(isinstance(outcome, UserError) and "its host sends" in outcome.message for outcome in outcomes)
        assert longest < 0.5

    def test_answers_are_parsed_in_another_thread(self):
        async def main():
            async with Host(answer()).serve() as host:
                made, network = fetcher(host)
                connect, threads = network.connect_tcp, []

                async def noting(*args):
                    threads.append(threading.current_thread().name)
                    return await connect(*args)

                network.connect_tcp = noting
                await asyncio.gather(*[made.fetch("http://media.test/") for _ in range(3)])
                return threads

        assert asyncio.run(main()) == ["downloads"] * 3


def test_bytes_after_the_end_of_a_request_are_not_counted():
    """Its download, in another thread, may go on for a moment."""
    gauge = DownloadGauge(100)
    with gauge.request() as held:
        held.grow(60)
    with pytest.raises(RequestEndedError):
        held.grow(10)
    assert gauge.num_bytes == 0


class TestTls:
    def fetch(self, url, context):
        async def main():
            server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            server.load_cert_chain(CERTIFICATE)
            asyncio.get_running_loop().set_exception_handler(lambda *_: None)  # the server's side of a refusal
            async with Host(answer()).serve(server) as host:
                names = Names(media_test=[PUBLIC], other_test=[PUBLIC])
                made, _ = fetcher(host, names, ssl_context=context)
                with contextlib.suppress(UserError):
                    return await made.fetch(url), host.requests
                return None, host.requests

        return asyncio.run(main())

    def test_the_certificate_is_verified_against_the_name(self):
        trusting = ssl.create_default_context(cafile=str(CERTIFICATE))
        body, requests = self.fetch("https://media.test/", trusting)
        assert body == b"picture"
        assert "Host: media.test\r\n" in requests[0]
        assert self.fetch("https://other.test/", trusting) == (None, [])

    def test_an_unknown_authority_is_refused(self):
        assert self.fetch("https://media.test/", None) == (None, [])
