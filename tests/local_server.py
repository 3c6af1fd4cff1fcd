"""A local web server that gives one answer to every request."""

import contextlib
import functools
import http.server
import threading


class _Handler(http.server.BaseHTTPRequestHandler):
    def __init__(self, answer, *arguments):
        self.answer = answer
        super().__init__(*arguments)

    def do_GET(self):
        self.wfile.write(self.answer)

    def log_message(self, *_):
        pass


def answer(body, length=None):
    """An HTTP answer; truncated if ``length`` is not the body's."""
    length = len(body) if length is None else length
    return b"HTTP/1.0 200 OK\r\nContent-Length: %d\r\n\r\n" % length + body


@contextlib.contextmanager
def serving(answer):
    """Answer every request with these bytes, valid HTTP or not; yield the address."""
    handler = functools.partial(_Handler, answer)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, args=(0.01,)).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
