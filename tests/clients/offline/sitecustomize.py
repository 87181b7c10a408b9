"""Lets the Python that starts with it reach this machine only, and writes down what else it tried to reach.

The hook sees what goes through Python's own sockets. Where a client has its own network code, an empty network
namespace is the proof: see docs/compatibility.md.
"""

import ipaddress
import os
import sys
from pathlib import Path


def _is_here(host):
    if host in (None, "", "localhost"):
        return True
    try:
        address = ipaddress.ip_address(host.decode() if isinstance(host, bytes) else str(host))
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified


def _watch(event, arguments):
    if event == "socket.getaddrinfo":
        host = arguments[0]
    elif event == "socket.connect" and isinstance(arguments[1], tuple):
        host = arguments[1][0]
    else:
        return
    if not _is_here(host):
        with Path(os.environ["CLIENT_OUTSIDE"]).open("a", encoding="utf-8") as file:
            file.write(f"{host}\n")
        raise PermissionError(f"{host} is outside of this machine")


sys.addaudithook(_watch)
