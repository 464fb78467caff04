"""The filter says what its rules say: each instruction is played by hand."""

from __future__ import annotations

import errno
import functools
import operator
import os
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlinf.utils.sandbox import seccomp

X86, ARM = (0, 0xC000003E), (1, 0xC00000B7)
ALLOW, KILL = 0x7FFF0000, 0x80000000
MEETS = {0x15: operator.eq, 0x35: operator.ge, 0x45: operator.and_}
"""What a jump asks of the value, by operation."""


Code = list[tuple[int, int, int, int]]


@functools.cache
def code_of(machine, files: bool) -> Code:
    """The instructions of a filter."""
    program = seccomp.assemble(seccomp.rules(files), *machine)
    return [struct.unpack_from("HBBI", program, i) for i in range(0, len(program), 8)]


def play(code: Code, data: bytes) -> int:
    """A slow machine for filters; returns the verdict."""
    at = value = 0
    for _ in range(len(code) + 1):
        operation, if_true, if_false, k = code[at]
        at += 1
        if operation == 0x20:
            value = struct.unpack_from("I", data, k)[0]
        elif operation == 0x06:
            return k
        else:
            met = MEETS[operation](value, k)
            at += if_true if met else if_false
    raise AssertionError("the filter does not end")


def verdict(machine, call: int, arguments=(), files=True, mark=None) -> int:
    mark = machine[1] if mark is None else mark
    arguments = [*arguments, 0, 0, 0, 0, 0, 0][:6]
    return play(code_of(machine, files), struct.pack("IIQ6Q", call, mark, 0, *arguments))


def refuses(rule, arguments) -> bool:
    if rule.argument is None:
        return True
    if rule.only is not None and arguments[rule.only[0]] & 0xFFFFFFFF != rule.only[1]:
        return False
    value = arguments[rule.argument] & 0xFFFFFFFF
    return {
        "any": bool(value & rule.value),
        "none": not value & rule.value,
        "equal": value == rule.value,
        "other": value != rule.value,
    }[rule.when]


def expected(call, arguments, rules) -> int:
    for rule in rules:
        if rule.call == call and refuses(rule, arguments):
            return 0x50000 | rule.error
    return ALLOW


@pytest.mark.parametrize("machine", [X86, ARM], ids=["x86_64", "aarch64"])
@given(arguments=st.lists(st.integers(0, 2**64 - 1), min_size=6, max_size=6))
def test_each_rule_is_kept(machine, arguments):
    rules = seccomp.rules(files=True)
    # Commands are small numbers, which arguments by chance are not.
    for tried in (arguments, [arguments[0], arguments[1] % 16, *arguments[2:]]):
        for call, numbers in seccomp.NUMBERS.items():
            number = numbers[machine[0]]
            if number is not None:
                assert verdict(machine, number, tried) == expected(call, tried, rules), call


@pytest.mark.parametrize("machine", [X86, ARM], ids=["x86_64", "aarch64"])
def test_other_calls_are_allowed_and_other_machines_are_not(machine):
    known = {numbers[machine[0]] for numbers in seccomp.NUMBERS.values()}
    for call in set(range(500)) - known:
        assert verdict(machine, call) == ALLOW
    assert verdict(machine, 0, mark=0x40000003) == KILL
    if machine is X86:
        assert verdict(machine, 0x40000000 | 41) == KILL


def test_threads_are_allowed_and_processes_are_not():
    thread, process = 0x3D0F00, 0x1200011
    assert verdict(X86, 56, [thread]) == ALLOW
    assert verdict(X86, 56, [process]) == 0x50000 | errno.EPERM


def test_streams_between_threads_are_allowed_and_datagrams_are_not():
    pair, sendto, fcntl = 53, 44, 72
    refused = 0x50000 | errno.EACCES
    for kind, allowed in ((1, True), (0x80801, True), (2, False), (0x80802, False), (5, False)):
        assert verdict(X86, pair, [1, kind]) == (ALLOW if allowed else refused)
    assert verdict(X86, pair, [2, 1]) == refused
    assert verdict(X86, sendto, [3, 1 << 40, 1]) == ALLOW
    assert verdict(X86, sendto, [3, 1 << 40, 1, 0, 1 << 40, 110]) == refused
    assert verdict(X86, fcntl, [0, 4, os.O_NONBLOCK]) == ALLOW
    for command, value in ((4, os.O_ASYNC), (8, 1), (10, 9), (15, 1 << 40)):
        assert verdict(X86, fcntl, [0, command, value]) == 0x50000 | errno.EPERM


def test_files_are_left_alone_unless_asked_for():
    assert verdict(X86, 257, [0, 0, os.O_WRONLY], files=False) == ALLOW
    assert verdict(X86, 257, [0, 0, os.O_WRONLY]) == 0x50000 | errno.EACCES
    assert verdict(X86, 257, [0, 0, os.O_RDONLY | os.O_CLOEXEC]) == ALLOW
    assert verdict(X86, 87, files=False) == ALLOW


def test_no_number_is_there_twice():
    for column in (0, 1):
        numbers = [n[column] for n in seccomp.NUMBERS.values() if n[column] is not None]
        assert len(numbers) == len(set(numbers))
