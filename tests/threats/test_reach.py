"""Whom downloads may reach: nobody inside, however it is written; with a resolver and a network of the test's own."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from ipaddress import ip_address
from typing import Any

import pytest

from chiasm.config.engine import MediaConfig
from chiasm.errors import OverloadedError, UserError
from chiasm.multimodal import reach, resolve
from chiasm.multimodal.fetch import MediaFetcher
from chiasm.multimodal.sources import RemoteUrl, parse_source
from tests.clocks import PATIENCE, pass_time
from tests.multimodal.remote import PUBLIC, Host, Names, Network, answer, fetcher, redirect
from tests.threats.forms import HOSTS, INSIDE, LOCATIONS, SEEMINGLY_INSIDE, inside_urls

PUBLIC_6 = "2606:2800:21f:cb07::1"
# Every name is one of a public host, so that only what is written can be the reason of a refusal.
ANYONE = {"media_test": [PUBLIC], "example_org": [PUBLIC], "inside_test": ["10.0.0.7"]}


class EveryName(Names):
    """Resolves whatever it is asked, to a public address, but what the system would know by itself."""

    async def __call__(self, host: str, port: int) -> Any:
        if host.startswith("localhost"):
            self._answers[host] = ["127.0.0.1"]
        self._answers.setdefault(host, [PUBLIC])
        return await super().__call__(host, port)


async def _outcome(made: MediaFetcher, url: str) -> bytes | UserError:
    """As a request goes: sorted by its scheme, then downloaded."""
    try:
        source = parse_source(url, max_bytes=1000)
        return await made.fetch(source.url) if isinstance(source, RemoteUrl) else b"not downloaded"
    except UserError as error:
        return error


def _fetch(url: str, *script: Any, names: Names | None = None, **settings: Any) -> tuple[Any, Host, Network]:
    async def main() -> tuple[Any, Host, Network]:
        async with Host(*script).serve() as host:
            made, network = fetcher(host, names or Names(**ANYONE), **settings)
            return await _outcome(made, url.replace("PORT", str(host.port))), host, network

    return asyncio.run(main())


def test_there_are_many_forms() -> None:
    assert len(HOSTS) >= 100
    assert len(set(inside_urls(1))) == len(inside_urls(1))
    assert len(LOCATIONS) >= 20


def test_no_form_of_an_inside_target_is_dialled() -> None:
    """Threat: SSRF by media URL (CVE-2025-6242, GHSA-3f6c-7fw2-ppm4, CVE-2026-33626).

    Names resolve to a public address here and every connection would lead to one host, so a form that is read as
    anything but what it is would be downloaded.
    """

    async def main() -> list[tuple[str, Any]]:
        async with Host(answer()).serve() as host:
            made, network = fetcher(host, EveryName())
            outcomes = [(url, await _outcome(made, url)) for url in inside_urls(host.port)]
            assert network.dialled == []
            return outcomes

    for url, outcome in asyncio.run(main()):
        assert isinstance(outcome, UserError), url
        assert outcome.status in (400, 422), url
        assert "0x" not in outcome.message or "0x" in url


def test_the_url_that_is_checked_is_the_one_that_is_dialled() -> None:
    """Threat: parser differential (CVE-2026-24779, GHSA-qh4c-xf7m-gxfc, CVE-2026-25960, GHSA-v359-jj2v-j536,
    CVE-2026-34753, GHSA-pf3h-qjgv-vcpr).

    No second parser ever reads a URL. Where one host may be reached, no form with two in it reaches the other.
    """
    for host in INSIDE["differential"]:
        url = f"http://{host}:PORT/"
        outcome, _, network = _fetch(url, answer(), allowed_media_domains=("example.org",))
        assert isinstance(outcome, UserError), url
        assert network.dialled == [], url
    for url in SEEMINGLY_INSIDE:
        outcome, _, network = _fetch(url, answer(), allowed_media_domains=("example.org",))
        assert outcome == b"picture", url
        assert network.dialled == [(PUBLIC, 80)], url


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("location", [*LOCATIONS, "http://inside.test:PORT/"])
def test_no_redirect_leads_inside(location: str, status: int) -> None:
    """Threat: redirects (CVE-2026-24779, CVE-2026-25960)."""
    canary = redirect(location, f"{status} Elsewhere")

    async def main() -> None:
        async with (
            Host(answer()).serve() as inside,
            Host(canary.replace(b"PORT", b"%d" % inside.port)).serve() as host,
        ):
            made, network = fetcher(host, Names(**ANYONE))
            outcome = await _outcome(made, "http://media.test/")
            assert isinstance(outcome, UserError)
            assert outcome.status in (400, 422)
            assert network.dialled == [(PUBLIC, 80)]
            assert inside.connections == 0

    asyncio.run(main())


@pytest.mark.parametrize("status", ["300 Many", "304 Same", "305 Proxy", "306 Old", "399 What"])
def test_other_statuses_send_nobody_anywhere(status: str) -> None:
    outcome, _, network = _fetch("http://media.test/", redirect("http://other.test/", status))
    assert isinstance(outcome, UserError)
    assert len(network.dialled) == 1


@pytest.mark.parametrize("script", [[redirect("/"), answer()], [redirect("x?y")] * 3 + [answer()]])
def test_a_few_redirects_are_followed(script: list[bytes]) -> None:
    assert _fetch("http://media.test/a/b", *script)[0] == b"picture"


def test_a_loop_of_redirects_ends() -> None:
    outcome, host, _ = _fetch("http://media.test/a", redirect("/b"), redirect("/a"))
    assert isinstance(outcome, UserError)
    assert "more than 3 times" in outcome.message
    assert host.connections == 4


@pytest.mark.parametrize(
    "inside", ["127.0.0.1", "10.0.0.1", "169.254.169.254", "::1", "::ffff:10.0.0.1", "64:ff9b::1"]
)
def test_rebinding_finds_nobody(inside: str) -> None:
    """A name that is public when it is looked at and inside when it is dialled, or both at once."""
    outcome, _, network = _fetch("http://media.test/", answer(), names=Names(media_test=[PUBLIC, inside]))
    assert outcome == b"picture"
    assert network.dialled == [(PUBLIC, 80)], "the address that was looked at, and no second look"
    for both in ([PUBLIC, inside], [inside, PUBLIC], [PUBLIC_6, PUBLIC, inside]):
        outcome, _, network = _fetch("http://media.test/", answer(), names=Names(media_test=[both]))
        assert isinstance(outcome, UserError)
        assert network.dialled == []


@pytest.mark.parametrize(
    ("url", "dialled"),
    [
        ("http://media.test/x.png", (PUBLIC, 80)),
        ("https://media.test:8080/x.png", (PUBLIC, 8080)),
        ("http://MEDIA.Test./x.png", (PUBLIC, 80)),
        (f"http://{PUBLIC}/x.png", (PUBLIC, 80)),
        (f"http://[{PUBLIC_6}]:81/x.png", (PUBLIC_6, 81)),
        ("http://[::ffff:8.8.8.8]/", ("::ffff:808:808", 80)),
        ("http://\uff58.\u30c6\u30b9\u30c8/", (PUBLIC_6, 80)),
    ],
)
def test_public_hosts_are_reached(url: str, dialled: tuple[str, int]) -> None:
    names = Names(**ANYONE, **{"x_xn--zckzah": [PUBLIC_6]})
    outcome, _, network = _fetch(url.replace("https", "http"), answer(), names=names)
    assert outcome == b"picture"
    assert network.dialled == [(dialled[0], dialled[1])]


def test_this_machines_own_public_address_is_inside_too(monkeypatch: pytest.MonkeyPatch) -> None:
    assert reach.is_own(ip_address("127.0.0.1"))
    assert not reach.is_own(ip_address(PUBLIC))
    monkeypatch.setattr(reach, "is_own", lambda address: str(address) == PUBLIC)
    outcome, _, network = _fetch("http://media.test/", answer())
    assert isinstance(outcome, UserError)
    assert "this server itself" in outcome.message
    assert network.dialled == []


def test_slow_name_servers_stop_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threat: slow hosts: a lookup ends when the system gives it up, whoever waits; others go on meanwhile."""
    go = threading.Event()

    def look_up(host: str, port: int, **_: object) -> list[Any]:
        if host.startswith("slow"):
            go.wait(PATIENCE)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (PUBLIC, port))]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(resolve, "_MAX_LOOKUPS", 50)

    async def main() -> None:
        async with Host(answer()).serve() as host:
            made = MediaFetcher(MediaConfig(fetch_timeout=600), dialer=Network(host))

            async def give_up(*hosts: str) -> None:
                """Ask hosts until it has taken too long."""
                asking = asyncio.gather(*(_outcome(made, f"http://{host}.test/") for host in hosts))
                await pass_time(600)
                outcomes = await asking
                assert {outcome.status for outcome in outcomes if isinstance(outcome, UserError)} == {422}

            # Only so many are downloaded at a time, so they come after each other.
            for number in range(49):
                await give_up(f"slow{number}")
            assert await _outcome(made, "http://media.test/") == b"picture"
            await give_up("slow")
            with pytest.raises(OverloadedError):
                await made.fetch("http://media.test/")
            go.set()
            fetched: list[bytes | UserError] = []
            while not fetched:  # lookups are ending, each in a thread of its own
                with contextlib.suppress(OverloadedError):
                    fetched.append(await _outcome(made, "http://media.test/"))
                await asyncio.sleep(0.01)
            assert fetched == [b"picture"]

    asyncio.run(main())


class TestDomains:
    """``--allowed-media-domains``: these hosts of the public internet, and no others."""

    @pytest.mark.parametrize(
        ("entry", "url"),
        [
            ("media.test", "http://media.test:81/x"),
            ("Media.TEST.", "http://media.test/"),
            ("media.test", "http://MEDIA.test./"),
            ("x.\u30c6\u30b9\u30c8", "http://x.xn--zckzah/"),
            ("x.xn--zckzah", "http://x.\u30c6\u30b9\u30c8/"),
            (PUBLIC, f"http://{PUBLIC}/"),
            (f"[{PUBLIC_6}]", f"http://[{PUBLIC_6}]/"),
        ],
    )
    def test_are_reached(self, entry: str, url: str) -> None:
        names = Names(**ANYONE, **{"x_xn--zckzah": [PUBLIC]})
        assert _fetch(url, answer(), names=names, allowed_media_domains=(entry,))[0] == b"picture"

    @pytest.mark.parametrize(
        "url",
        ["http://example.org/", "http://sub.media.test/", "http://media.test.example.org/", "http://xmedia.test/",
         f"http://{PUBLIC}/", "http://\u043cedia.test/"],
    )  # fmt: skip
    def test_others_are_not_even_looked_up(self, url: str) -> None:
        names = EveryName()
        outcome, _, network = _fetch(url, answer(), names=names, allowed_media_domains=("media.test",))
        assert isinstance(outcome, UserError)
        assert "--allowed-media-domains" in outcome.message
        assert network.dialled == []
        assert names.asked == []

    def test_redirects_stay_within(self) -> None:
        script = [redirect("http://example.org/")]
        outcome, _, network = _fetch("http://media.test/", *script, allowed_media_domains=("media.test",))
        assert isinstance(outcome, UserError)
        assert len(network.dialled) == 1

    def test_a_domain_with_an_inside_address_is_still_inside(self) -> None:
        outcome, _, network = _fetch("http://inside.test/", answer(), allowed_media_domains=("inside.test",))
        assert isinstance(outcome, UserError)
        assert "not public" in outcome.message
        assert network.dialled == []

    def test_private_hosts_that_are_named_come_in_addition(self) -> None:
        settings = {"allowed_media_domains": ("media.test",), "allowed_media_hosts": ("inside.test:8000",)}
        assert _fetch("http://inside.test:8000/", answer(), **settings)[0] == b"picture"
        assert _fetch("http://media.test/", answer(), **settings)[0] == b"picture"
        assert isinstance(_fetch("http://inside.test:8001/", answer(), **settings)[0], UserError)

    @pytest.mark.parametrize(
        "entry", ["", "*", "*.test", "http://a.test", "a.test:80", "a.test/x", "a b", "u@a.test", "1"]
    )
    def test_malformed_settings_are_refused(self, entry: str) -> None:
        with pytest.raises(UserError) as caught:
            MediaFetcher(MediaConfig(allowed_media_domains=(entry,)))
        assert caught.value.param == "allowed_media_domains"
        assert caught.value.message.startswith("allowed_media_domains must be a whole host name")
        assert caught.value.message.endswith(f"got {entry!r}.")
