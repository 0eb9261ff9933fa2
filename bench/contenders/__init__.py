"""One file per contender. Each offers, in its own process:

`prepare(n)` make the tables in the empty database `marks.TARGET` and queue n no-op jobs with the library's own bulk call ·
`work()` import, connect, wait at the gate, run the worker for ever

and, in the driver's process, where the library is not installed:

`recorded(scalar, after)` how many jobs the library has recorded as done (`scalar(sql)` answers one value; `after` is the
highest id that was there before the drain, for those who keep history in the table they count).

So no file here imports its library at the top.
"""
