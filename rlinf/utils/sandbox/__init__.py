"""Runs programs that nobody has read, and judges them without trusting them.

The processes, and what each of them knows:

- The judge is the process that asks (`Sandbox`, `Session` and `Judge`). It knows expected values
  and the text of checks.
- A launcher (`launcher`), one for each program, knows the program and the inputs it was asked with.
- The program's process (`program`), one for each run, knows the same: it is a fork of the launcher,
  and a fork has the memory of its parent.
- The check's process (`check_process`), a fork of a launcher of its own, knows the text of checks.

None of the others trusts anything that the program's process sends.

So what decides a verdict is never in the memory, the descriptors or the reach of the program. A
program only ever sends values (`values`: plain types, bounded size and depth), which are compared
outside. To write a value to its pipe by hand is no cheat: it has to be the right one.

- Programs that print: the input goes in, the output is compared outside.
- Calls: arguments go in, the value comes back and is compared outside.
- Checks, which are code such as `assert solve(1) == 2`: they run in a process of their own, in a
  sandbox, too. Each name that they take from the program is a proxy there: a call of it sends
  plain arguments to the program's process and takes a plain value back. What cannot be judged that
  way is refused by name (`CheckRefused`): see `check_process`.

A sandbox is closed by default: what this machine cannot enforce is refused unless the caller says
that it is not required (`confine.GUARANTEES`).
"""
