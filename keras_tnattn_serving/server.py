"""uvicorn's server, which loses no request when it stops."""

import asyncio
import functools
import math
import signal
import socket
import time
from types import FrameType
from typing import Any

import uvicorn

from keras_tnattn_serving.connections import Connection
from keras_tnattn_serving.observed import Observed
from keras_tnattn_serving.settings import Settings


class Server(uvicorn.Server):
    """A server that drains before it stops.

    After SIGTERM it reports that it is not ready and closes connections after their answer, but
    accepts new ones for `drain_s`. Then it takes the connections that the system has accepted for
    it, waits for the requests of clients that have just connected, answers all requests and ends.
    """

    def __init__(self, app: Observed, settings: Settings, listening: socket.socket) -> None:
        self._inference, self._settings, self._listening = app.inference, settings, listening
        self._stop_at = math.inf
        self._protocol = functools.partial(Connection, settings=settings)
        config = uvicorn.Config(
            app,
            http=self._protocol,  # type: ignore[arg-type]
            ws="none",
            log_config=None,
            log_level="warning",
            access_log=False,
            timeout_keep_alive=math.ceil(settings.keep_alive_s),
            timeout_graceful_shutdown=max(1, round(settings.stop_s)),
            server_header=False,
        )
        super().__init__(config)

    def serve_until_stopped(self) -> None:
        """Serves until SIGINT or SIGTERM."""
        # uvicorn closes its socket while connections that it has not taken yet may wait behind it,
        # and these would be reset. They are not as long as this socket is open.
        self.run([self._listening.dup()])

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Starts to drain; a second signal stops the server at once."""
        if self._inference.draining:
            self.force_exit = self.should_exit = True
            return
        self._inference.draining = True
        drain_s = self._settings.drain_s if sig == signal.SIGTERM else 0
        self._stop_at = time.monotonic() + drain_s

    async def on_tick(self, counter: int) -> bool:
        """Returns whether to stop."""
        return await super().on_tick(counter) or time.monotonic() >= self._stop_at

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stops listening, and answers all requests of those who have connected."""
        for server in self.servers:
            server.close()
        await self._take_waiting()
        connections: Any = self.server_state.connections
        while not self.force_exit and any(each.about_to_ask for each in connections):
            await asyncio.sleep(0.02)
        await super().shutdown(sockets)

    async def _take_waiting(self) -> None:
        """Takes the connections that wait behind the socket, and closes it."""
        self._listening.setblocking(False)
        waiting = []
        try:
            while True:
                waiting.append(self._listening.accept()[0])
        except OSError:  # there is none, or no more files can be opened
            self._listening.close()
        loop = asyncio.get_running_loop()
        for connection in waiting:
            connection.setblocking(False)
            await loop.connect_accepted_socket(self._connection, connection)

    def _connection(self) -> Connection:
        return self._protocol(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
