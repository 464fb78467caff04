"""Whoever waits for calls is told of each rank that ends, of calls beside them as well."""

from types import SimpleNamespace

from rlinf.scheduler import WorkerGroupFuncResult, wait_all


class Backend:
    """Calls that end in a given order."""

    def __init__(self, order):
        self.order = list(order)

    def wait(self, refs, count, timeout):
        known = [ref for ref in self.order if ref in refs]
        return known[:1]

    def get(self, refs, timeout=None):
        for ref in refs:
            self.order.remove(ref)
        return [ref.upper() for ref in refs]


def test_ranks_are_told_of_while_others_go_on():
    backend = Backend(["a1", "b0", "a0", "b1"])
    supervisor = SimpleNamespace(timeout=lambda kind: None)
    group = SimpleNamespace(name="group", backend=backend, supervisor=supervisor)
    first = WorkerGroupFuncResult(group, "first", [4, 7], ["a0", "a1"])
    later = WorkerGroupFuncResult(group, "later", [4, 7], ["b0", "b1"])
    told = []

    def ended(call, rank):
        told.append((call.method, rank))
        assert first._outcomes is None, "it is still waited for"

    assert wait_all(first, beside=[later], ended=ended) == [["A0", "A1"]]
    assert told == [("first", 7), ("later", 4), ("first", 4)]
    assert backend.order == ["b1"], "nobody waits for what is beside"
