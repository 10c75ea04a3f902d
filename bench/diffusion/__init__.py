"""Experiments on masked rows: what the adapter "holes" of the default model can and cannot do.

Each command goes on where it was stopped, prints a table for people and a last line of JSON. Books are the
17 of Standard Ebooks that the adapter was not trained on.
"""
