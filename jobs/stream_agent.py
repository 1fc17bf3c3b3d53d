"""The streaming job: `scripts/dgx-spark-submit jobs/stream_agent.py`. Settings: conf/hermes.yaml, spark.hermes.*, HERMES_*."""

import sys

from hermes_spark.app.driver import stream_agent

if __name__ == "__main__":
    sys.exit(stream_agent())
