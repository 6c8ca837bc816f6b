"""A SuperLink and two SuperNodes on localhost, and a run of ``deployed_app.py`` on them."""

import os
import shutil
import subprocess
import sys
import tempfile
import time

CONFIG = """
[superlink]
default = "here"
[superlink.here]
address = "127.0.0.1:8000"
insecure = true
"""
PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "localdp"
version = "1.0.0"
license = "Apache-2.0"
dependencies = ["flwr>=1.42"]
[tool.hatch.build.targets.wheel]
packages = ["."]
[tool.flwr.app]
publisher = "someone"
[tool.flwr.app.components]
serverapp = "app:server_app"
clientapp = "app:client_app"
[tool.flwr.app.config]
"""
SECONDS = 8  # until a part of Flower listens


def start(name, *arguments):
    return subprocess.Popen([sys.executable, os.path.join(os.path.dirname(sys.executable), name),
                             *arguments])  # fmt: skip


if __name__ == "__main__":
    os.environ["FLWR_HOME"] = home = tempfile.mkdtemp()
    app = os.path.join(home, "app")
    os.mkdir(app)
    shutil.copy("deployed_app.py", os.path.join(app, "app.py"))
    for path, text in ((home, CONFIG), (app, PROJECT)):
        name = "config.toml" if path == home else "pyproject.toml"
        with open(os.path.join(path, name), "w") as file:
            file.write(text)
    parts = [start("flower-superlink", "--insecure", "--disable-runtime-dependency-installation")]
    time.sleep(SECONDS)
    for i in range(2):
        node = ("--port", str(9094 + 10 * i), "--node-config", f"partition-id={i} num-partitions=2")
        parts.append(
            start("flower-supernode", "--insecure", "--superlink", "127.0.0.1:8000", *node)
        )
    time.sleep(SECONDS)
    start("flwr", "run", app, "here", "--stream").wait(240)
    for part in parts:
        part.terminate()
    for part in parts:
        part.wait(20)
    shutil.rmtree(home, ignore_errors=True)
