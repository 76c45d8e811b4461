"""Corpora from files and logs: what is read, and how it becomes n-gram caches and datastores."""
