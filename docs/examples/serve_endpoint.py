"""Serve the classifiers of a finished study on this machine, and label a sentence over HTTP.

raybias demo --out OUT
python docs/examples/serve_endpoint.py OUT 8000
"""

import json
import sys
from urllib.request import Request, urlopen

import raybias

with raybias.serve(sys.argv[1], port=int(sys.argv[2])) as url:
    run = json.load(urlopen(f"{url}/runs"))["runs"][0]["run"]
    body = json.dumps({"run": run, "texts": ["The clerk was late."]}).encode()
    asked = Request(f"{url}/label", body, {"Content-Type": "application/json"})
    print(json.load(urlopen(asked)))
