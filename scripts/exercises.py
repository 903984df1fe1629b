"""Twelve exercises: write GPT-2's functions yourself and find out what is wrong with them.

  python scripts/exercises.py             list the exercises
  python scripts/exercises.py 4           print one (all are in scripts/exercises.md)
  python scripts/exercises.py 4 --hint    print its hint
  python scripts/exercises.py 4 mine.py   check the functions in mine.py
  python scripts/exercises.py all mine.py check those of all exercises

The exit code is 0 if they are right, 1 if they are wrong, 2 if they cannot be run, 130 after
Ctrl-C.
"""

import argparse
import re
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from exercise_checks import CHECKS, Mine, Wrong

from tiedgpt.errors import one_line

PAGE = Path(__file__).with_name("exercises.md")
HINT = "<details><summary>Hint</summary>"  # on the page, a hint unfolds
CTRL_C = 130  # the exit code after Ctrl-C


@dataclass(frozen=True)
class Exercise:
    number: int
    title: str
    text: str
    hint: str

    @property
    def label(self) -> str:
        """How a line of output begins: "exercise 2, layer norm"."""
        title = self.title[0].lower() + self.title[1:]
        return f"exercise {self.number}, {title}"

    @property
    def page(self) -> str:
        """The exercise as it is printed."""
        return f"{self.number}. {self.title}\n\n{self.text}"


def read_page() -> dict[int, Exercise]:
    """The exercises of the page, by number."""
    page = PAGE.read_text(encoding="utf-8")
    exercises = {}
    _, *sections = re.split(r"^## ", page, flags=re.M)  # the first part is the introduction
    for section in sections:
        heading, text = section.split("\n", maxsplit=1)  # the heading is "2. Layer norm"
        number, title = heading.split(". ", maxsplit=1)
        text, hint = text.split(HINT, maxsplit=1)
        hint = hint.replace("</details>", "")
        exercises[int(number)] = Exercise(int(number), title, text.strip(), hint.strip())
    return exercises


def main(argv: list[str] | None = None) -> int:
    exercises = read_page()
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    numbers = [str(number) for number in exercises]
    parser.add_argument(
        "number", nargs="?", choices=[*numbers, "all"], metavar="N", help="1 to 12, or all"
    )
    parser.add_argument("file", nargs="?", metavar="FILE", help="a Python file with your functions")
    parser.add_argument("--hint", action="store_true", help="print the hint of exercise N")
    args = parser.parse_args(argv)
    if args.hint and (args.number is None or args.file is not None):
        parser.error("--hint: expected the number of an exercise, and no file")

    if args.number is None:
        for exercise in exercises.values():
            print(f"{exercise.number:2}  {exercise.title}")
        return 0
    if args.number == "all":
        chosen = list(exercises.values())
        label = "all exercises"
    else:
        chosen = [exercises[int(args.number)]]
        label = chosen[0].label
    if args.hint:
        print("\n\n".join(exercise.hint for exercise in chosen))
        return 0
    if args.file is None:
        print("\n\n".join(exercise.page for exercise in chosen))
        return 0

    # The file's globals, to which its functions are added. With this name, what stands under
    # `if __name__ == "__main__"` is not run.
    names: dict[str, Any] = {"__name__": "mine", "__file__": args.file}
    exit_code = run_file(label, args.file, names)
    if exit_code > 0:
        return exit_code
    return check_all(chosen, Mine(names, args.file))


def run_file(label: str, file: str, names: dict[str, Any]) -> int:
    """Run the reader's file. Return the exit code, 0 if it has run.

    names: the globals of the file. Afterwards they have its functions.
    """
    try:
        code = compile(Path(file).read_bytes(), file, "exec")
    except SyntaxError as error:
        print_error(f"{label}: {file}, line {error.lineno}: {error.msg}")
        return 2
    except OSError as error:
        print_error(f"{label}: {file}: {error.strerror}")
        return 2
    except ValueError as error:  # a name or a text with a null byte
        print_error(f"{label}: {file}: {error}")
        return 2
    try:
        with np.errstate(all="ignore"):  # NumPy's warnings are not errors of the reader's
            exec(code, names)
    except BaseException as error:  # also a SystemExit and a Ctrl-C
        return print_traceback(label, file, error)
    return 0


def check_all(exercises: list[Exercise], mine: Mine) -> int:
    """Check one exercise after the other, and return the largest exit code.

    After Ctrl-C the others are not checked.
    """
    exit_codes = []
    for exercise in exercises:
        exit_code = check(exercise, mine)
        if exit_code == CTRL_C:
            return CTRL_C
        exit_codes.append(exit_code)
    return max(exit_codes)


def check(exercise: Exercise, mine: Mine) -> int:
    """Check the functions of an exercise, print what came of it, and return the exit code."""
    run_check = CHECKS[exercise.number]
    try:
        with np.errstate(all="ignore"):  # known mistakes overflow, too
            run_check(mine)
    except Wrong as wrong:
        print(f"{exercise.label}: wrong")
        for line in str(wrong).split("\n"):
            print(one_line(line))
        return 1
    except BaseException as error:
        return print_traceback(exercise.label, mine.file, error)
    print(f"{exercise.label}: right")
    return 0


def print_traceback(label: str, file: str, error: BaseException) -> int:
    """Print an error of the reader's code with the lines that led to it. Return the exit code.

    An error that is not from the reader's file is raised again: it is ours.
    """
    all_frames = traceback.extract_tb(error.__traceback__)
    readers_frames = [frame for frame in all_frames if frame.filename == file]
    if not readers_frames:
        raise error
    if isinstance(error, KeyboardInterrupt):
        print_error(f"{label}: {file}: stopped by Ctrl-C")
        exit_code = CTRL_C
    else:
        print_error(f"{label}: {file}: {type(error).__name__}: {error}")
        exit_code = 2
    for frame in readers_frames[-5:]:  # the last ones are nearest to the error
        print_error(f"  line {frame.lineno}, in {frame.name}: {frame.line}")
    return exit_code


def print_error(line: str) -> None:
    print(one_line(line), file=sys.stderr)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(CTRL_C)
