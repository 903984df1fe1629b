"""scripts/publish.py: one line of pyproject.toml is the address. make_site.py: a site of pages."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import make_site  # of scripts/
import publish as publish_script
import pytest

import tiedgpt

ROOT = Path(__file__).resolve().parents[2]
FILES = (
    "pyproject.toml",
    "README.md",
    "CITATION.cff",
    "scripts/make_notebook.py",
    "scripts/lecture.md",
    "scripts/lecture.ipynb",
    "tiedgpt/explore/tied.html",
    "tiedgpt/explore/article/index.html",
)
ON_GITHUB = "https://github.com/made-up/address"
ELSEWHERE = "https://code.example/made-up/address"


@pytest.fixture
def publish(run_script):
    """publish(root, *arguments) -> 0, or the error with which the script ends."""

    def publish(root, *arguments):
        exit_code, _, _ = run_script(publish_script, "--root", root, *arguments)
        return exit_code

    return publish


@pytest.fixture
def copied(tmp_path, publish):
    """The files of a checkout that name its address, without one: this checkout may have one."""
    for name in FILES:
        content = (ROOT / name).read_bytes()
        if name.endswith("tied.html"):
            content = without_models(content)
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    set_address(tmp_path, None)
    assert publish(tmp_path) == 0
    return tmp_path


def without_models(page):
    """The built article without its two models, which are most of its two megabytes."""
    before, tag, rest = page.partition(b' id="models">')
    models, end, after = rest.partition(b"</script>")
    assert len(models) > len(before + after)
    return before + tag + end + after


def set_address(root, address):
    """Write the line into pyproject.toml, or remove it for None."""
    path = root / "pyproject.toml"
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    # The section of this checkout's own address goes: its line, and all lines up to the next one.
    text = re.sub(r"^\[project\.urls\]\n([^\[].*\n|\n)*", "", text, flags=re.MULTILINE)
    if address is not None:
        text += f'\n[project.urls]\nRepository = "{address}"\n'
    path.write_text(text, encoding="utf-8")


def contents(root):
    return {name: (root / name).read_bytes() for name in FILES if name != "pyproject.toml"}


def test_this_checkout_says_the_address_of_its_pyproject(publish):
    assert publish(ROOT, "--check") == 0


@pytest.mark.parametrize("address", [ON_GITHUB, ELSEWHERE])
def test_each_file_names_the_address_and_without_it_is_as_before(copied, publish, address):
    before = contents(copied)
    set_address(copied, address)
    assert "run scripts/publish.py" in publish(copied, "--check")
    assert contents(copied) == before
    assert publish(copied) == 0
    assert publish(copied, "--check") == 0

    readme = (copied / "README.md").read_text(encoding="utf-8")
    assert f"git clone {address} tiedgpt" in readme
    assert f"url = {{{address}}}" in readme
    assert f'repository-code: "{address}"' in (copied / "CITATION.cff").read_text(encoding="utf-8")
    for notebook in ("scripts/make_notebook.py", "scripts/lecture.ipynb"):
        assert address in (copied / notebook).read_text(encoding="utf-8")
    assert not any(b"ADDRESS" in content for content in contents(copied).values())

    set_address(copied, None)
    assert publish(copied) == 0
    assert contents(copied) == before


def test_on_github_there_are_badges_a_notebook_on_colab_and_pages(copied, publish):
    set_address(copied, ON_GITHUB)
    assert publish(copied) == 0
    readme = (copied / "README.md").read_text(encoding="utf-8")
    assert f"]({ON_GITHUB}/actions)" in readme
    colab = "https://colab.research.google.com/github/made-up/address/"
    for lecture in ("scripts/lecture.md", "scripts/lecture.ipynb"):
        assert colab in (copied / lecture).read_text(encoding="utf-8")
    for page in ("tiedgpt/explore/tied.html", "tiedgpt/explore/article/index.html"):
        html = (copied / page).read_text(encoding="utf-8")
        assert 'rel="canonical" href="https://made-up.github.io/address/tied.html"' in html
        assert '"og:image" content="https://made-up.github.io/address/tied.png"' in html


def test_another_address_replaces_the_first(copied, publish):
    for address in (ELSEWHERE, ON_GITHUB):
        set_address(copied, address)
        assert publish(copied) == 0
    assert not any(ELSEWHERE.encode() in content for content in contents(copied).values())


def test_a_file_that_has_lost_its_place_is_an_error(copied, publish):
    (copied / "CITATION.cff").write_text("cff-version: 1.2.0\n", encoding="utf-8")
    set_address(copied, ON_GITHUB)
    before = contents(copied)
    assert "CITATION.cff" in publish(copied)
    assert contents(copied) == before


@pytest.mark.slow
@pytest.mark.parametrize("address", [None, ON_GITHUB])
def test_the_site_is_built_and_its_links_lead_somewhere(tmp_path, publish, address):
    """With an address, a link to a file that is no page leads to the repository."""
    pytest.importorskip("sphinx", reason="needs pip install -e .[docs]")
    pytest.importorskip("myst_parser", reason="needs pip install -e .[docs]")
    checkout = tmp_path / "checkout"
    folders = ("scripts", "tiedgpt", "tests/vectors", "weights", ".github")
    for folder in folders:
        shutil.copytree(ROOT / folder, checkout / folder)
    for file in ("README.md", "CHANGELOG.md", "CITATION.cff", "LICENSE", "pyproject.toml"):
        shutil.copyfile(ROOT / file, checkout / file)
    set_address(checkout, address)
    assert publish(checkout) == 0

    site = tmp_path / "site"
    command = [sys.executable, "scripts/make_site.py", str(site)]
    subprocess.run(command, cwd=checkout, check=True)
    library = (site / "api.html").read_text(encoding="utf-8")
    for name in tiedgpt.__all__:
        assert f"tiedgpt.{name}" in library
    index = (site / "index.html").read_text(encoding="utf-8")
    assert (f'href="{ON_GITHUB}/blob/main/scripts/tied.py"' in index) == (address is not None)
    for page in site.glob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert not re.search(r'<(script|link rel="stylesheet"|img)[^>]* (src|href)="https?:', text)


def test_a_link_that_leads_nowhere_is_found(tmp_path):
    (tmp_path / "a.html").write_text('<a href="b.html#here"></a><a href="c.html"></a>')
    (tmp_path / "b.html").write_text('<p id="there"></p><a href="a.html"></a>')
    faults = list(make_site.broken_links(tmp_path))
    assert faults == ["a.html: b.html#here: no such title", "a.html: c.html: no such file"]


@pytest.mark.parametrize(
    ("schema", "files"),
    [
        ("github-workflows", ".github/workflows/*.yml"),
        ("github-issue-forms", ".github/ISSUE_TEMPLATE/*.yml"),
        ("citation-file-format", "CITATION.cff"),
    ],
)
def test_the_files_for_github_have_its_schema(schema, files):
    pytest.importorskip("check_jsonschema", reason="needs pip install -e .[dev]")
    paths = sorted(map(str, ROOT.glob(files)))
    assert paths
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}"]
    done = subprocess.run([*command, *paths], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
