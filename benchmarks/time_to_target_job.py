"""The script of the runs that `benchmarks.time_to_target` compares with what was predicted.

Arguments: a JSON object with the fields of `benchmarks.time_to_target.Task`.
"""

import json
import sys

from benchmarks import time_to_target

job = time_to_target.job(time_to_target.Task(**json.loads(sys.argv[1])), paced=True)
