"""Files of requests, in the form of OpenAI's batches: ``python -m runtime batch``.

files      what is asked and what was answered, a line each; an interrupted run goes on
answering  the server's application in this process, asked without a network
"""
