"""One adapter for each engine. Each runs in a process and an environment of its own and answers the protocol
of `serve.py`.
"""
