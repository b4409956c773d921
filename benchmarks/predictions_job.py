"""The script of the runs that `benchmarks.predictions` compares with what was predicted.

Arguments: a JSON object with the fields of `benchmarks.predictions.Paced`.
"""

import json
import sys

from benchmarks import predictions

job = predictions.job(predictions.Paced(**json.loads(sys.argv[1])))
