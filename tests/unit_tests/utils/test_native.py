"""C files become libraries, once per machine, or it is said why not."""

import shutil

import pytest

from rlinf.utils import native


@pytest.fixture(autouse=True)
def fresh(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    native.compiled.cache_clear()
    yield
    native.compiled.cache_clear()


def source(tmp_path, text="int answer(void) { return NUMBER; }"):
    path = tmp_path / "file.c"
    path.write_text(text)
    return path


needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="no C compiler"
)


@needs_compiler
def test_a_file_is_compiled_once_for_each_number(tmp_path):
    path = source(tmp_path)
    libraries = [native.compiled(path, NUMBER=number) for number in (3, 4)]
    assert [native.load(path, NUMBER=number).answer() for number in (3, 4)] == [3, 4]
    assert {library.parent for library in libraries} == {tmp_path / "rlinf"}
    before = libraries[0].stat().st_mtime_ns
    native.compiled.cache_clear()
    assert native.compiled(path, NUMBER=3) == libraries[0], "as another process would find it"
    assert libraries[0].stat().st_mtime_ns == before
    assert sorted(tmp_path.glob("rlinf/*")) == sorted(libraries), "nothing is left over"


@needs_compiler
def test_what_the_compiler_says_is_passed_on(tmp_path):
    with pytest.raises(native.NoNativeKernels, match="NUMBER"):
        native.compiled(source(tmp_path))
    assert not list(tmp_path.glob("rlinf/*"))


@needs_compiler
def test_a_library_that_cannot_be_loaded_is_no_library(tmp_path):
    path = source(tmp_path)
    native.compiled(path, NUMBER=3).write_text("no library")
    with pytest.raises(native.NoNativeKernels, match="cannot be loaded"):
        native.load(path, NUMBER=3)


def test_without_a_compiler_it_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("CC", "/no/such/compiler")
    with pytest.raises(native.NoNativeKernels, match="install gcc, or set CC"):
        native.compiled(source(tmp_path), NUMBER=1)
