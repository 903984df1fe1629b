"""Twelve exercises: write GPT-2's functions yourself and find out what is wrong with them.

  python scripts/exercises.py             list the exercises
  python scripts/exercises.py 4           print one (all are in scripts/exercises.md)
  python scripts/exercises.py 4 mine.py   check the functions in mine.py

The exit code is 0 if they are right, 1 if they are wrong, 2 if they cannot be run, 130 after
Ctrl-C.
"""

import argparse
import re
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import CodeType

import numpy as np
from exercise_checks import CHECKS, Mine, Wrong

from tiedgpt.errors import one_line

PAGE = Path(__file__).with_name("exercises.md")


@dataclass(frozen=True)
class Exercise:
    number: int
    title: str
    text: str

    @property
    def label(self) -> str:
        """How a line of output begins."""
        return f"exercise {self.number}, {self.title[0].lower()}{self.title[1:]}"


def read_page() -> dict[int, Exercise]:
    """The exercises of the page, by number."""
    page = PAGE.read_text(encoding="utf-8")
    exercises = {}
    for section in re.split(r"^## ", page, flags=re.M)[1:]:
        heading, text = section.split("\n", maxsplit=1)
        number, title = heading.split(". ", maxsplit=1)
        exercises[int(number)] = Exercise(int(number), title, text.strip())
    return exercises


def main(argv: list[str] | None = None) -> int:
    exercises = read_page()
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "number", nargs="?", type=int, choices=exercises, metavar="N", help="1 to 12"
    )
    parser.add_argument("file", nargs="?", metavar="FILE", help="a Python file with your functions")
    args = parser.parse_args(argv)

    if args.number is None:
        for exercise in exercises.values():
            print(f"{exercise.number:2}  {exercise.title}")
        return 0
    exercise = exercises[args.number]
    if args.file is None:
        print(f"{exercise.number}. {exercise.title}")
        print()
        print(exercise.text)
        return 0
    return check_file(exercise, args.file)


def check_file(exercise: Exercise, file: str) -> int:
    """Check the functions in a file, print what came of it, and return the exit code."""
    try:
        code = compile(Path(file).read_bytes(), file, "exec")
    except SyntaxError as error:
        print_error(f"{exercise.label}: {file}, line {error.lineno}: {error.msg}")
        return 2
    except (OSError, ValueError) as error:
        print_error(f"{exercise.label}: {file}: {getattr(error, 'strerror', None) or error}")
        return 2
    try:
        check_code(exercise, file, code)
    except Wrong as wrong:
        print(f"{exercise.label}: wrong")
        for line in str(wrong).split("\n"):
            print(one_line(line))
        return 1
    except BaseException as error:
        return print_traceback(exercise, file, error)
    print(f"{exercise.label}: right")
    return 0


def check_code(exercise: Exercise, file: str, code: CodeType) -> None:
    """Run the file and check its functions. Raises Wrong, and what the reader's code raises."""
    names = {"__name__": "mine", "__file__": file}
    with np.errstate(all="ignore"):
        exec(code, names)
        CHECKS[exercise.number](Mine(names, file))


def print_traceback(exercise: Exercise, file: str, error: BaseException) -> int:
    """Print an error of the reader's code with the last lines that led to it."""
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file
    ]
    if not frames:
        raise error  # it is not the reader's
    if isinstance(error, KeyboardInterrupt):
        print_error(f"{exercise.label}: {file}: stopped by Ctrl-C")
        exit_code = 130
    else:
        print_error(f"{exercise.label}: {file}: {type(error).__name__}: {error}")
        exit_code = 2
    for frame in frames[-5:]:
        print_error(f"  line {frame.lineno}, in {frame.name}: {frame.line}")
    return exit_code


def print_error(line: str) -> None:
    print(one_line(line), file=sys.stderr)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
