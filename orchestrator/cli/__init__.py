"""The commands of the command line: each is a line of `table.py`, and the file or the folder of its name.

A start of the program reads the table alone; the command that was typed is imported then.
"""
