"""The adapters, one per engine. Each runs in its own process and environment and implements the protocol of
`serve.py`.
"""
