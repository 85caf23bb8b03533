"""The simulated device's memory, as the simulated engines keep it: one small JSON file for all engines of a node.

The format and the locking are those of `agent/sim/src/ledger.rs`; the two must change together (a check of the contract
suite has them read each other). A ledger is

    {"header": {"name", "uuid", "total_bytes"},
     "allocations": [{"pid", "start_ticks", "engine", "bytes"}, …]}

Writers hold an exclusive flock on PATH.lock, drop the allocations of processes that are gone (zombies are), and replace
the file by rename; readers need no lock.
"""

import contextlib
import fcntl
import json
import os


class OutOfMemory(RuntimeError):
    """The allocation does not fit. The text is the allocator's of sleep mode."""

    def __init__(self):
        super().__init__("CUDA Error: out of memory at cumem_allocator.cpp")


def start_ticks(pid):
    """Start time of a running process in clock ticks since boot; None where there is none or it is a zombie."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            # The name may hold spaces and brackets: the fields begin after its last bracket.
            fields = stat.read().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


class Ledger:
    """One device; every call is this process's own."""

    def __init__(self, path, engine):
        self.path, self.engine = path, engine
        self.pid = os.getpid()
        self.ticks = start_ticks(self.pid)

    def free_bytes(self):
        """Free bytes, device-wide."""
        content = self._read()
        return content["header"]["total_bytes"] - sum(a["bytes"] for a in content["allocations"])

    def allocate(self, count):
        """Takes bytes, or raises OutOfMemory and changes nothing."""
        if count <= 0:
            return
        with self._change() as content:
            used = sum(a["bytes"] for a in content["allocations"])
            if used + count > content["header"]["total_bytes"]:
                raise OutOfMemory()
            for allocation in content["allocations"]:
                if self._is_mine(allocation):
                    allocation["bytes"] += count
                    return
            mine = {"pid": self.pid, "start_ticks": self.ticks, "engine": self.engine, "bytes": count}
            content["allocations"].append(mine)

    def release(self, count):
        """Gives bytes back; more than it has gives all."""
        with self._change() as content:
            for allocation in content["allocations"]:
                if self._is_mine(allocation):
                    allocation["bytes"] = max(0, allocation["bytes"] - count)
            content["allocations"] = [a for a in content["allocations"] if a["bytes"] > 0]

    def _is_mine(self, allocation):
        return (allocation["pid"], allocation["start_ticks"], allocation["engine"]) == (
            self.pid,
            self.ticks,
            self.engine,
        )

    def _read(self):
        with open(self.path, "rb") as file:
            content = json.load(file)
        content["allocations"] = [a for a in content["allocations"] if start_ticks(a["pid"]) == a["start_ticks"]]
        return content

    @contextlib.contextmanager
    def _change(self):
        with open(self.path + ".lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            content = self._read()
            yield content
            new = self.path + ".new"
            with open(new, "w") as file:
                json.dump(content, file)
            os.replace(new, self.path)
