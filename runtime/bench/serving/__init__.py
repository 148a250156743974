"""``bench serving``: load on a server, as its clients see it, and what faults do to them.

client    one streamed request, and when its tokens came
load      who asks when: closed loop (so many clients) or open loop (so many a second)
figures   percentiles, under the names of vLLM's benchmark
faults    clients that misbehave, and a server told to stop, beside clients that must not notice
server    a server of one's own, where none is named
"""
