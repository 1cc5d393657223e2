"""`ppcourse gpu-check`: does the course do on this machine's GPUs what it does on the CPU? A report in Markdown.

    sections.py   which sections there are, in which order, how long each may take
    check.py      runs them one after another, whatever becomes of each, and writes the report
    the others    one section or two a file: a function of a Setting and an Allowance to a Finding

A dry run does the same on the CPU, and its report says so in its title.
"""
