"""A CPU worker of vLLM that has a device: `--worker-cls hotbunk_worker.LedgerWorker`.

The CPU build's own worker frees nothing on `sleep`, refuses `discard`, and has no memory that could run out. This one
keeps the device ledger that the simulated engines share, so that a real API server, a real engine core and a real
scheduler meet simulated device memory:

* the pool is a row of allocations, weights first and KV cache last. A sleep walks it and gives each back, a wake takes
  each again; each step takes its time, so others see memory come and go;
* a sleep compares the device's free bytes before and after, as vLLM's GPU worker does, and raises its assertion; an
  allocation that does not fit raises, and leaves what was mapped mapped;
* what a GPU would lose is lost: level 2 zeroes the weights (buffers stay, as vLLM saves them), and any loss of the KV
  cache zeroes it;
* a step while anything is unmapped raises what CUDA raises, and the engine core dies of it;
* without `--enable-sleep-mode` the pool is empty and nothing of this happens.

HOTBUNK_HOOK names a folder with `hook.json`, which is read again at each operation:

    ledger, engine                       the ledger's file, which must exist; this engine's name in it
    residual_mib, weights_mib, kv_mib    what it holds asleep, and the two parts of the pool
    op_log                               JSON lines, as the simulated engine writes them (`agent/sim/src/oplog.rs`)
    pin_s, sleep_s, discard_s, release_s, wake_s, reload_s
                                         seconds: on top of the first level-1 sleep, of a level-1 sleep, of a level-2
                                         sleep, of a release of the KV cache, of a whole wake, of reload_weights

A file `faults/KIND` in the folder arms a fault, which removes it when it strikes. Kinds are the simulated engine's
(`sim-engine --help`): sleep_500, wake_500, wake_oom, sleep_frees_half, crash_in_sleep, crash_in_wake,
neighbour_alloc_in_sleep, and sleep_hang, wake_hang with the file's content in seconds.
"""

import json
import os
import time

from hotbunk_ledger import Ledger, OutOfMemory, start_ticks
from vllm.v1.worker.cpu_worker import CPUWorker

MIB = 1 << 20
WEIGHT_PARTS, KV_PARTS = 8, 4
ILLEGAL_ACCESS = "CUDA error: an illegal memory access was encountered"


class Hook:
    """The folder that HOTBUNK_HOOK names."""

    def __init__(self):
        self.folder = os.environ["HOTBUNK_HOOK"]

    def settings(self):
        with open(os.path.join(self.folder, "hook.json")) as file:
            return json.load(file)

    def seconds(self, name):
        return float(self.settings().get(name, 0))

    def strike(self, kind):
        """The armed fault's content, or None; it is used up."""
        path = os.path.join(self.folder, "faults", kind)
        try:
            with open(path) as file:
                content = file.read().strip()
            os.remove(path)
        except OSError:
            return None
        return content

    def record(self, op, detail, began, ok):
        settings = self.settings()
        if not settings.get("op_log"):
            return
        entry = {
            "engine": settings["engine"],
            "op": op,
            "detail": detail,
            "began_ns": began,
            "ended_ns": time.monotonic_ns(),
            "ok": ok,
        }
        with open(settings["op_log"], "a") as log:
            log.write(json.dumps(entry) + "\n")


class Pace:
    """Steps that together take a given time, reckoned from absolute instants."""

    def __init__(self):
        self.at = time.monotonic()

    def advance(self, seconds):
        self.at += seconds
        time.sleep(max(0.0, self.at - time.monotonic()))


class Part:
    """One allocation of the pool."""

    def __init__(self, tag, count):
        self.tag, self.bytes = tag, count
        self.is_asleep = False
        self.withheld = 0


class LedgerWorker(CPUWorker):
    """See the module."""

    def init_device(self):
        self.hook = Hook()
        settings = self.hook.settings()
        self.ledger = Ledger(settings["ledger"], settings["engine"])
        self.residual = settings["residual_mib"] * MIB
        self.pool = []
        self.is_pinned = False
        self.has_sleep_mode = self.vllm_config.model_config.enable_sleep_mode
        self.ledger.allocate(self.residual // 2)
        super().init_device()

    def load_model(self, **kwargs):
        super().load_model(**kwargs)
        self._add("weights", self.hook.settings()["weights_mib"] * MIB, WEIGHT_PARTS)

    def initialize_from_config(self, kv_cache_config):
        super().initialize_from_config(kv_cache_config)
        self._add("kv_cache", self.hook.settings()["kv_mib"] * MIB, KV_PARTS)

    def compile_or_warm_up_model(self):
        result = super().compile_or_warm_up_model()
        self.ledger.allocate(self.residual - self.residual // 2)
        return result

    def _add(self, tag, total, parts):
        for index in range(parts):
            part = Part(tag, total * (index + 1) // parts - total * index // parts)
            self.ledger.allocate(part.bytes)
            self.pool.append(part)

    def execute_model(self, scheduler_output):
        if scheduler_output.total_num_scheduled_tokens > 0 and any(part.is_asleep for part in self.pool):
            raise RuntimeError(ILLEGAL_ACCESS)
        return super().execute_model(scheduler_output)

    def sleep(self, level=1):
        # RPC arguments may come as text.
        level = int(level)
        self._run("sleep", f"level={level}", lambda: self._sleep(level))

    def wake_up(self, tags=None):
        detail = "all" if tags is None else "tags=" + ",".join(tags)
        self._run("wake", detail, lambda: self._wake_up(tags))

    def discard(self, tags):
        self._run("release_kv_cache", "", lambda: self._discard(tags))

    def reload_weights(self, *args, **kwargs):
        def reload():
            if any(part.is_asleep for part in self.pool if part.tag == "weights"):
                os._exit(1)
            Pace().advance(self.hook.seconds("reload_s"))
            super(LedgerWorker, self).reload_weights(*args, **kwargs)

        self._run("reload_weights", "", reload)

    def _run(self, op, detail, work):
        began = time.monotonic_ns()
        ok = False
        try:
            work()
            ok = True
        finally:
            self.hook.record(op, detail, began, ok)

    def _sleep(self, level):
        if not self.has_sleep_mode:
            return
        hook, pace = self.hook, Pace()
        if hook.strike("sleep_500") is not None:
            raise RuntimeError("fault sleep_500")
        self._hang("sleep_hang")
        before = self.ledger.free_bytes()
        halves, dies = hook.strike("sleep_frees_half") is not None, hook.strike("crash_in_sleep") is not None
        parts = [part for part in self.pool if not part.is_asleep]
        seconds = hook.seconds("sleep_s" if level == 1 else "discard_s")
        if level == 1 and not self.is_pinned:
            seconds += hook.seconds("pin_s")
            self.is_pinned = True
        released = 0
        for index, part in enumerate(parts):
            if dies and index == len(parts) // 2:
                os._exit(1)
            # Copies take the time of a level-1 sleep, so all but a little of it goes to the weights.
            pace.advance(self._share(seconds, part, parts, level))
            part.withheld = part.bytes // 2 if halves else 0
            self.ledger.release(part.bytes - part.withheld)
            released += part.bytes - part.withheld
            part.is_asleep = True
        if level != 1 and any(part.tag == "weights" for part in parts):
            self._lose_weights()
        self._lose_kv_cache()
        if hook.strike("neighbour_alloc_in_sleep") is not None:
            self._bring_neighbour(released + 256 * MIB)
        assert self.ledger.free_bytes() >= before, "Memory usage increased after sleeping."

    @staticmethod
    def _share(seconds, part, parts, level):
        alike = [p for p in parts if p.tag == part.tag]
        if len(alike) == len(parts):
            return seconds / len(parts)
        weights = 0.9 if level == 1 else 0.5
        return seconds * (weights if part.tag == "weights" else 1 - weights) / len(alike)

    def _wake_up(self, tags):
        if not self.has_sleep_mode:
            return
        hook, pace = self.hook, Pace()
        if hook.strike("wake_500") is not None:
            raise RuntimeError("fault wake_500")
        self._hang("wake_hang")
        parts = [part for part in self.pool if part.is_asleep and (tags is None or part.tag in tags)]
        short = bool(parts) and hook.strike("wake_oom") is not None
        dies = bool(parts) and hook.strike("crash_in_wake") is not None
        for index, part in enumerate(parts):
            if index == len(parts) // 2:
                if dies:
                    os._exit(1)
                if short:
                    raise OutOfMemory()
            self.ledger.allocate(part.bytes - part.withheld)
            part.withheld, part.is_asleep = 0, False
            pace.advance(hook.seconds("wake_s") / len(self.pool))

    def _discard(self, tags):
        if not self.has_sleep_mode:
            return
        pace = Pace()
        parts = [part for part in self.pool if part.tag in tags and not part.is_asleep]
        for part in parts:
            pace.advance(self.hook.seconds("release_s") / len(parts))
            self.ledger.release(part.bytes)
            part.is_asleep = True
        self._lose_kv_cache()

    def _lose_weights(self):
        for _, parameter in self.model_runner.get_model().named_parameters():
            parameter.data.zero_()

    def _lose_kv_cache(self):
        for cache in self.model_runner.kv_caches:
            for tensor in cache if isinstance(cache, list | tuple) else [cache]:
                tensor.zero_()

    def _hang(self, kind):
        content = self.hook.strike(kind)
        if content is not None:
            time.sleep(float(content) if content else 1e6)

    def _bring_neighbour(self, count):
        """Another process's memory; pid 1 lives for ever, as a neighbour that one has forgotten."""
        neighbour = Ledger(self.ledger.path, "foreign")
        neighbour.pid, neighbour.ticks = 1, start_ticks(1)
        neighbour.allocate(count)
