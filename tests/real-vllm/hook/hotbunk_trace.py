"""Where a control call of a real vLLM server spends its time: HOTBUNK_TRACE names a file that gets a JSON line a station.

    front   the API server hands the call to its engine client, and has its answer        (main thread of the API server)
    input   the engine core's input thread has read it from the socket
    core    the engine core's main loop takes it up, between two steps                    (main thread of the engine core)

Each line has the call, the instant on CLOCK_MONOTONIC in ns, which all processes share, and for the core the number of
steps it has run. `sitecustomize.py` installs this.
"""

import functools
import json
import os
import time


def _note(station, call, **more):
    entry = {"station": station, "call": call, "at_ns": time.monotonic_ns(), **more}
    with open(os.environ["HOTBUNK_TRACE"], "a") as trace:
        trace.write(json.dumps(entry) + "\n")


def front(module):
    """Patches `vllm.v1.engine.async_llm`."""
    for name in ("sleep", "wake_up", "release_kv_cache_memory", "is_sleeping"):
        setattr(module.AsyncLLM, name, _timed(getattr(module.AsyncLLM, name), name))


def _timed(method, name):
    @functools.wraps(method)
    async def timed(*args, **kwargs):
        _note("front", name)
        try:
            return await method(*args, **kwargs)
        finally:
            _note("front", name, answered=True)

    return timed


def core(module):
    """Patches `vllm.v1.engine.core`."""
    engine = module.EngineCoreProc
    utility = module.EngineCoreRequestType.UTILITY
    read, handle, step = engine.process_input_sockets, engine._handle_client_request, engine._process_engine_step

    def process_input_sockets(self, *args, **kwargs):
        put = self.input_queue.put_nowait

        def put_nowait(item):
            if item[0] == utility:
                _note("input", item[1][2])
            put(item)

        self.input_queue.put_nowait = put_nowait
        read(self, *args, **kwargs)

    def handle_client_request(self, kind, request):
        if kind == utility:
            _note("core", request[2], steps=getattr(self, "hotbunk_steps", 0))
        return handle(self, kind, request)

    def process_engine_step(self):
        self.hotbunk_steps = getattr(self, "hotbunk_steps", 0) + 1
        return step(self)

    engine.process_input_sockets = process_input_sockets
    engine._handle_client_request = handle_client_request
    engine._process_engine_step = process_engine_step
