"""What is worked out once for each key and kept while it is in use: bounded, counted, thread-safe.

The like of src/support/memo.h for what is kept in Python; `tw.doctor()` lists both.
"""

import collections
import threading

_memos = []


class Memo:
    """Up to `most` values by key; then the one that has waited longest for its next use goes."""

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
        """Keeps a value, unless there is one for the key already; the value kept."""
        with self._lock:
            value = self._values.setdefault(key, value)
            if len(self._values) > self.most:
                self._values.popitem(last=False)
                self.evictions += 1
            return value

    def replace(self, key, value):
        """Keeps a value instead of any other for the key."""
        with self._lock:
            self._values.pop(key, None)
        return self.put(key, value)

    def clear(self):
        with self._lock:
            self._values.clear()

    def values(self):
        """The values kept, the one used last at the end."""
        with self._lock:
            return list(self._values.values())

    def __len__(self):
        return len(self._values)


def report():
    """A line for each memo that was used, by name, as `doctor` prints those of the library."""
    used = [m for m in _memos if m.hits or m.misses or m.evictions]
    return "".join(
        f"  {m.name}: {len(m)} of {m.most} entries; {m.hits} hits, {m.misses} misses, "
        f"{m.evictions} evictions\n"
        for m in sorted(used, key=lambda m: m.name)
    )
