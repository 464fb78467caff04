"""Workers as threads of the driver, one of which runs at a time, for `rlinf train --debug=inline`.

A debugger, a profiler or a print then sees the whole run in one process, in one order. Nothing else
changes: workers are built, called and exchange data as they do in processes of their own, and come
to the same numbers.
"""
