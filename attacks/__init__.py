"""One attack a file, or a folder where it needs several: how is a message turned on its sender?"""
