"""The kernel: pure decisions on plain values.

Everything here is a function of its arguments. Nothing reads a clock, draws a random number, touches a database, a
thread or an event loop; ``lint-imports`` checks it. Rooms ask the kernel one question each:

* may it run now? ``gate`` · again after how long? ``backoff``, and while the other side is away ``hold`` · is this move allowed? ``lifecycle``
* when next? ``recurrence`` · when not? ``windows`` · which local time? ``localtime``
* how long do I hold it? ``lease`` · can this value be carried? ``payload`` · what went wrong? ``errors``
* whose task is it? ``rooms``
* is this the same call as before? ``canonical``, on the arguments as ``binding`` names them
"""
