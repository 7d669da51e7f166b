"""Two regions count the same clicks by the hour; one is killed, and the other takes over.

How data flows. Every click goes to the broker of the region that its client is in, and the clients
say by an injector in each region, ``clicks``, what is complete there. In each region a *mirror*
(the computation ``mirror``) copies the clicks of the other one to the own broker, with their source
coordinates beside them. So a region's Spark, which reads both topics, has all clicks; its driven
hours (the computation ``windows``) close when both inputs have passed them. It does so in both
regions all the time: the one that does not own the reference stands by, warm. Beside Spark a
*committer* takes the closed hours to the one sink that both regions reach, and then reports them as
``hourly``. It asks for its adoption number before each commit, and the sink compares the number in
the commit itself: so only the owner's rows are there. ``lowwater region`` tells the global
authority how far ``hourly`` (L) and ``mirror`` (R) are, and the local readers what is published for
all.

    clients -> broker (clicks) ---------> Spark (windows) -> committer (hourly) -> sink
                  |                          ^                    ^ number
                  +-> mirror of the other -> broker (mirrored)    `lowwater region`
                                                                  ^
                                                              `lowwater global`

The mirror is a small consumer and producer of our own, and not MirrorMaker 2. R needs the order
"read W, then the source's end, then mirror past it", and positions in the coordinates of the
source. MirrorMaker tells neither: its translation of offsets is lossy. It would also be two more
JVMs.

In the time of a take-over is what passes from the kill on: the silence until the region is suspect,
the operator's word, the new number at the agent, its raise in the sink, the first commit. The Spark
of the region that stands by is not in it, for it runs already; that of the lost region is killed,
and started again.
"""
