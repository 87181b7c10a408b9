"""Grammars that answers follow: made, checked in a process of their own, followed token by token."""
