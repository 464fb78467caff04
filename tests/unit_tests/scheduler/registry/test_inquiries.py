"""Questions of the registry to members of a run inside this process."""

from __future__ import annotations

from tests.unit_tests.scheduler.small_run import in_thread


def test_a_member_that_cannot_answer_yet_keeps_nobody_waiting(small_run):
    ready, starting = small_run.join("r:0"), small_run.join("s:0")
    ready.registry.on_inquiry("mood", lambda question: f"{question}: good")

    def ask() -> dict[str, str]:
        # Without an answer of some kind this would take for ever.
        return small_run.server.inquire("mood", "today", ["r:0", "s:0"], timeout=1e6)

    assert in_thread(ask).wait() == {"r:0": "today: good"}
    starting.registry.on_inquiry("mood", lambda question: "better")
    assert in_thread(ask).wait() == {"r:0": "today: good", "s:0": "better"}
