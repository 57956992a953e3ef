"""The socket a server listens on, and its URL."""

import socket

from kvalet.errors import ConfigError


def listen(host: str, port: int) -> socket.socket:
    """A bound socket; port 0 takes any free one. Raises ConfigError, one line, if it cannot be."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        sock = socket.socket(family, kind, protocol)
    except (OSError, OverflowError) as error:
        raise _refused(host, port, error) from None
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen()
    except (OSError, OverflowError) as error:
        sock.close()
        raise _refused(host, port, error) from None
    return sock


def url_of(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _refused(host: str, port: int, error: OSError | OverflowError) -> ConfigError:
    reason = error.strerror if isinstance(error, OSError) else str(error)
    return ConfigError(f"cannot listen on {host} port {port}: {reason}")
