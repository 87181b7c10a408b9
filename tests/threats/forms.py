"""Ways to write a target that no request may reach. ``PORT`` stands for that of a server that must see nobody."""

from __future__ import annotations

# Hosts by which a URL names a place inside, or hides it.
INSIDE: dict[str, tuple[str, ...]] = {
    "loopback": ("127.0.0.1", "127.0.0.53", "127.255.255.254", "[::1]", "[0:0:0:0:0:0:0:1]", "[0000::0001]"),
    "unspecified": ("0.0.0.0", "[::]", "0.1.2.3"),
    "private": ("10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "[fc00::1]", "[fd12:3456:789a::1]"),
    "link-local": ("169.254.0.1", "169.254.255.254", "[fe80::1]", "[febf::1]", "[fec0::1]"),
    "metadata": (
        "169.254.169.254", "169.254.170.2", "100.100.100.200", "192.0.0.192", "168.63.129.16", "[fd00:ec2::254]",
        "[fd20:ce::254]",
    ),
    "multicast": ("224.0.0.1", "239.255.255.250", "[ff02::1]", "[ff0e::1]"),
    "broadcast": ("255.255.255.255", "240.0.0.1"),
    "shared": ("100.64.0.1", "100.127.255.254"),
    "benchmark": ("198.18.0.1", "198.19.255.254", "[2001:2::1]"),
    "documentation": ("192.0.2.1", "198.51.100.7", "203.0.113.9", "[2001:db8::1]", "[3fff::1]"),
    "protocols": ("192.0.0.1", "192.88.99.1", "[100::1]", "[5f00::1]", "[2001:20::1]"),
    "mapped": ("[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[::ffff:169.254.169.254]", "[::ffff:10.0.0.1]"),
    "compatible": ("[::127.0.0.1]", "[::7f00:1]", "[::ffff:0:127.0.0.1]"),
    "NAT64": ("[64:ff9b::127.0.0.1]", "[64:ff9b::a9fe:a9fe]", "[64:ff9b:1::10.0.0.1]", "[64:ff9b:1::8.8.8.8]"),
    "6to4": ("[2002:7f00:1::]", "[2002:a9fe:a9fe::1]", "[2002:c0a8:101::]"),
    "Teredo": ("[2001:0:7f00:1::]", "[2001::1]"),
    "zone": ("[fe80::1%25eth0]", "[fe80::1%eth0]", "[::1%25lo]", "[2606:2800:21f:cb07::1%251]"),
    "decimal": ("2130706433", "2852039166", "0", "4294967296"),
    "octal": ("0177.0.0.1", "017700000001", "0177.0.0.01", "00000127.0.0.1"),
    "hexadecimal": ("0x7f.0.0.1", "0x7f000001", "0X7F000001", "127.0.0.0x1", "0x"),
    "short": ("127.1", "127.0.1", "127.", "10.1"),
    "too many or too large": ("127.0.0.1.1", "1.2.3.256", "127.0.0.1.."),
    "percent": ("%31%32%37.0.0.1", "127%2e0%2e0%2e1", "%6cocalhost", "127.0.0.1%00.example.org", "127.0.0.1%23"),
    "wide": ("\uff11\uff12\uff17.0.0.1", "\u2460\u2461\u2466.0.0.1", "127\u30020\u30020\u30021", "127\uff0e0.0.1"),
    "names": (
        "localhost", "LOCALHOST", "LocalHost", "localhost.", "\u24dbocalhost", "loc\u00adalhost",
        "127.0.0.1.",
    ),
    "brackets": ("[127.0.0.1]", "[::1", "::1", "[::1]x", "[::1].example.org", "[]", "[v1.x]"),
    "user name": ("user@127.0.0.1", "user:password@127.0.0.1", "example.org@127.0.0.1", "@127.0.0.1", ":@127.0.0.1"),
    "differential": (
        "example.org\\@127.0.0.1", "example.org%40127.0.0.1", "example.org%23@127.0.0.1", "example.org%5c@127.0.0.1",
        "example.org\\.127.0.0.1", "127.0.0.1\\.example.org", "127.0.0.1 .example.org",
        "127.0.0.1\t.example.org", "127.0.0.1\r\nHost: example.org", "127.0.0.1\0.example.org", "exa\nmple.org",
        "\uff20127.0.0.1", "example.org\uff0f@127.0.0.1",
    ),
}  # fmt: skip

# These name another host than they seem to, by every standard; ``@`` is only a part of what follows it.
SEEMINGLY_INSIDE = (
    "http://example.org#@127.0.0.1:PORT/", "http://example.org?@127.0.0.1:PORT/", "http://example.org/@127.0.0.1:PORT/",
    "http://example.org/\uff20127.0.0.1/", "http://example.org/http://127.0.0.1:PORT/", "http://example.org//127.0.0.1/",
)  # fmt: skip

HOSTS = tuple(host for hosts in INSIDE.values() for host in hosts)

# Whole URLs, where the form is in something else than the host.
URLS = (
    "http:/127.0.0.1:PORT/", "http:127.0.0.1:PORT/", "http:///127.0.0.1:PORT/", "http:\\\\127.0.0.1:PORT/",
    " http://127.0.0.1:PORT/", "\nhttp://127.0.0.1:PORT/", "HTTP://127.0.0.1:PORT/", "hTTps://127.0.0.1:PORT/",
    "http://127.0.0.1:0PORT/", "http://127.0.0.1:PORT:80/", "http://127.0.0.1:PORT@example.org:/",
    "http://example.org:80@127.0.0.1:PORT/", "http://127.0.0.1:0/", "http://127.0.0.1:65536/", "http://127.0.0.1:-1/",
    "http://127.0.0.1:\uff18\uff10/", "//127.0.0.1:PORT/", "ftp://127.0.0.1:PORT/", "gopher://127.0.0.1:PORT/_GET",
    "dict://127.0.0.1:PORT/x", "ws://127.0.0.1:PORT/", "unix:///127.0.0.1", "file://127.0.0.1/etc/passwd",
    "jar:http://127.0.0.1:PORT/!/", "blob:http://127.0.0.1:PORT/", "view-source:http://127.0.0.1:PORT/",
    "http+unix://127.0.0.1:PORT/", "127.0.0.1:PORT/x.png",
)  # fmt: skip


def inside_urls(port: int) -> list[str]:
    """Every form as a URL, with the canary's port where a host is all there is to the form."""
    return [f"http://{host}:{port}/x.png" for host in HOSTS] + [url.replace("PORT", str(port)) for url in URLS]


# Where a public host may send its visitors to.
LOCATIONS = (
    "http://127.0.0.1:PORT/", "//127.0.0.1:PORT/", "http://[::1]:PORT/", "http://[::ffff:127.0.0.1]:PORT/",
    "http://169.254.169.254/latest/meta-data/", "http://10.0.0.1/", "http://localhost:PORT/", "http://2130706433:PORT/",
    "file:///etc/passwd", "ftp://media.test/", "data:image/png;base64,AAAA",
    "gopher://127.0.0.1:PORT/", "javascript:alert(1)", "http://user@media.test/", "http://user:x@127.0.0.1:PORT/",
    "http://media.test\\@127.0.0.1:PORT/", "\\\\127.0.0.1:PORT/",
    "/\\127.0.0.1:PORT/", "http://[::1", "http:///127.0.0.1/", "http://", "http://media.test:99999/",
)  # fmt: skip
