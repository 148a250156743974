"""From an opened bundle to a pair that can run: engines on their devices, workers over them.

host.py       both engines on the host device
resident.py   the target on a GPU, the draft on the same one, another one or the CPU
engines.py    one engine on a GPU, by the backend that its bundle was built for
probing.py    the exactness probe of any session, and what is remembered of it
warming.py    the calls that a compiled engine runs once before the first text
hardware.py   what stands in for CUDA and the vendors' modules in tests
"""
