"""Imported by the server alone: it ends with the notebook's process, whatever ends that, and removes its socket."""

import atexit
import os
import shutil

atexit.register(shutil.rmtree, os.environ["PPCOURSE_SERVER_FOLDER"], ignore_errors=True)
