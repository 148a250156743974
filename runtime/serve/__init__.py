"""The OpenAI-compatible server: ``python -m runtime serve``.

request    HTTP body -> what an LLM can be asked (``http.requests``, ``asked``)
gate       how many may be in the house, and whether the door is open
generation the choices of one request, merged as they come; cancelled when nobody listens
rounds     what the engine did, round by round; read by ``metrics`` and ``/stats``
http/      the routes; the only folder that imports FastAPI
page/      the files of the page at /: chat, and a timeline of the last rounds
process    the socket, the signals, the drain
batch/     files of requests: ``python -m runtime batch``
ray/       many replicas with Ray Serve and Ray Data; the only folder that imports Ray
"""
