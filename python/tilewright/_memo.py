"""Values computed once per key and kept while in use: bounded, counted, thread-safe.

The Python counterpart of src/support/memo.h; `tw.doctor()` lists both.
"""

import collections
import threading

_memos = []


class Memo:
    """Holds up to `most` values by key, then drops the least recently used one."""

    def __init__(self, name, most):
        self.name, self.most = name, most
        self.hits = self.misses = self.evictions = 0
        self._values = collections.OrderedDict()
        self._lock = threading.Lock()
        _memos.append(self)

    def find(self, key):
        """The value kept for a key, or None."""
        with self._lock:
            value = self._values.get(key)
            if value is None:
                self.misses += 1
            else:
                self.hits += 1
                self._values.move_to_end(key)
            return value

    def put(self, key, value):
        """Keeps a value unless the key has one already; returns the value kept."""
        with self._lock:
            value = self._values.setdefault(key, value)
            if len(self._values) > self.most:
                self._values.popitem(last=False)
                self.evictions += 1
            return value

    def replace(self, key, value):
        """Keeps a value in place of any other for the key."""
        with self._lock:
            self._values.pop(key, None)
        return self.put(key, value)

    def clear(self):
        with self._lock:
            self._values.clear()

    def values(self):
        """The values kept, the most recently used one last."""
        with self._lock:
            return list(self._values.values())

    def __len__(self):
        return len(self._values)


def report():
    """A line for each memo in use, by name, like those that `doctor` prints for the library."""
    used = [m for m in _memos if m.hits or m.misses or m.evictions]
    return "".join(
        f"  {m.name}: {len(m)} of {m.most} entries; {m.hits} hits, {m.misses} misses, "
        f"{m.evictions} evictions\n"
        for m in sorted(used, key=lambda m: m.name)
    )
