"""What runs inside the processes of a recorded program: the standard library and torch alone.

The program may run under another Python than dpaudit's, where dpaudit is not installed. So nothing
here imports the rest of it, and ``dpaudit/inputs/inside`` loads the package from its folder.
"""
