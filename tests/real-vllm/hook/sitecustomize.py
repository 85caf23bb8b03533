"""Lets the CPU build of vLLM take `--enable-sleep-mode`, for servers whose worker is `hotbunk_worker.LedgerWorker`.

Python imports this file by itself when its folder is on PYTHONPATH. It does nothing unless HOTBUNK_HOOK is set: then the
platform's answer to "is there a sleep mode?" becomes yes, in the process that checks the arguments. What the worker
does is in `hotbunk_worker.py`; `README.md` beside it tells how the two are used.
"""

import importlib.abc
import importlib.util
import os
import sys


class _Finder(importlib.abc.MetaPathFinder):
    """Runs a function on one module as soon as that has been imported."""

    def __init__(self, name, then):
        self.name, self.then = name, then

    def find_spec(self, name, path, target=None):
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def execute_then(module):
            execute(module)
            self.then(module)

        spec.loader.exec_module = execute_then
        return spec


def _allow_sleep_mode(module):
    module.CpuPlatform.is_sleep_mode_available = lambda self: True


if os.environ.get("HOTBUNK_HOOK"):
    sys.meta_path.insert(0, _Finder("vllm.platforms.cpu", _allow_sleep_mode))
if os.environ.get("HOTBUNK_TRACE"):
    import hotbunk_trace

    sys.meta_path.insert(0, _Finder("vllm.v1.engine.async_llm", hotbunk_trace.front))
    sys.meta_path.insert(0, _Finder("vllm.v1.engine.core", hotbunk_trace.core))
