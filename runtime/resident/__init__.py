"""R4: pairs whose rounds are device memory: kernels and engine calls, with the host beside them.

The workers of ``runtime.workers`` look at what engines give and decide. These do not look: they
only enqueue, and kernels decide where the numbers are. The rounds, the scheduler and everything
above are the same for both, and so are the tokens.

What the host does in a round: it launches work on two streams, whose threads enqueue; it reads an
earlier round's tokens; it hands them on. Nothing in a round waits for it.

    what                       how often a round                        on the critical path
    -------------------------  ---------------------------------------  ------------------------
    the host waits             once, for the reading of the round       no: the next is queued
                               before the one that it has just queued
    a stream waits for the     never                                    -
    host
    a stream's thread waits    for the other's enqueueing; for the GPU  no
                               never (a draft on the CPU: for verdicts)
    copies to the host         one from each side, 8 (K + 8) bytes a    no
                               row
    across the link            16 bytes a row to the draft, and         yes: 80 bytes with K = 4
                               8 (K + 4) back
    allocations                none, once a shape has been met twice    -
                               (its first call, its capture)

What lags behind, in rounds:

    a stop token or stop string that ended a text         1, its row is verified once for nothing
    a text's limit                                        0, the device sees it
    cancelling, joining, another plan                     1
    cache rows that are bound                             0, by an upper bound of the lengths
    fan-out statistics, hit and rank in reports           1 to 2

    kernels     launches, copies, small values of the host
    slabs       arrays in device memory
    laws        sampling parameters, verdicts, drafted tokens
    ledger      what the host knows of each row
    exchange    messages between the sides; readings, reports: to the host
    learning    statistics to the device and back
    phases      CUDA graphs
    target      ``ResidentTarget``: verify, score, and what happens between rounds
    draft       ``ResidentDraft``: prepare, adopt, commit; draft, follow
                (``drafting``: what it enqueues, ``draft_rows``: its memory)
    host_draft  ``HostDraft``: a draft on the CPU beside a target on a GPU
    support     what is refused
"""

from runtime.resident.draft import ResidentDraft
from runtime.resident.exchange import Exchange
from runtime.resident.host_draft import HostDraft, HostDraftExchange
from runtime.resident.kernels import Work, work_on
from runtime.resident.support import require_supported
from runtime.resident.target import ResidentTarget

__all__ = [
    "Exchange",
    "HostDraft",
    "HostDraftExchange",
    "ResidentDraft",
    "ResidentTarget",
    "Work",
    "require_supported",
    "work_on",
]
