"""The recipes of tiedgpt/scale/README.md run: pandas, datatrove, PySpark and Ray.

A recipe scores texts. "To be, or not to be" has a loss of 3.606. "x" has one token and so no loss.
"""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import tiedgpt

README = (Path(tiedgpt.__file__).parent / "scale" / "README.md").read_text(encoding="utf-8")
PANDAS, DATATROVE, SPARK_AND_RAY = re.findall(r"```python\n(.*?)```", README, re.S)

# What a user adds to a recipe, to see the losses of some texts
SHOW_PANDAS = """
print(table.loss[0], table.loss[2], len(table.next))
"""
RUN_SPARK = """
import pandas as pd
from pyspark.sql import SparkSession

builder = SparkSession.builder.master("local[2]")
spark = builder.config("spark.executorEnv.OPENBLAS_NUM_THREADS", "1").getOrCreate()
table = spark.createDataFrame(pd.DataFrame({"text": ["To be, or not to be", "x"] * 50}))
found = table.mapInPandas(score, "text string, loss double").toPandas()
"""
RUN_RAY = """
import ray

texts = ray.data.from_items([{"text": text} for text in ["To be, or not to be", "x"] * 50])
found = texts.map_batches(Scorer, concurrency=2, batch_size=256).to_pandas()
"""
# How many rows there are, and how many of them have the loss of "To be, or not to be"
COUNT = """
print(len(found), (found.loss.astype(float).round(3) == 3.606).sum())
"""


@pytest.fixture
def output_of(tmp_path):
    """output_of(recipe) -> what a recipe prints when it is run in a new process."""

    def output_of(recipe):
        path = tmp_path / "recipe.py"  # a file, because the workers import it
        path.write_text(recipe, encoding="utf-8")
        environment = dict(os.environ)
        environment["PYTHONPATH"] = str(Path(tiedgpt.__file__).parents[1])  # this tiedgpt
        environment["PYSPARK_PYTHON"] = sys.executable
        done = subprocess.run(
            [sys.executable, str(path)],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=200,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return output_of


def needs(module):
    """A mark: without this module the test is skipped."""
    return pytest.mark.skipif(find_spec(module) is None, reason=f"{module} is not installed")


@needs("pandas")
def test_pandas(output_of):
    """The table has three texts. The first is "To be, or not to be", and the last is "x"."""
    assert re.search(r"3\.606\d* nan 3", output_of(PANDAS + SHOW_PANDAS))


@needs("datatrove")
def test_datatrove(output_of):
    out = output_of(DATATROVE)
    assert re.search(r"1 {'loss': 3\.606\d*}\n2 {'loss': None}", out)


@pytest.mark.slow
@needs("pyspark")
@needs("pyarrow")
def test_spark(output_of):
    rows_and_losses = output_of(SPARK_AND_RAY + RUN_SPARK + COUNT)
    assert rows_and_losses.startswith("100 50")


@pytest.mark.slow
@needs("ray")
def test_ray(output_of):
    rows_and_losses = output_of(SPARK_AND_RAY + RUN_RAY + COUNT)
    assert rows_and_losses.startswith("100 50")
