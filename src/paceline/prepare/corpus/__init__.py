"""Corpora from files and logs, as n-gram caches and datastores."""
