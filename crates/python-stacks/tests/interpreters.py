"""Compares the stacks that `python_stacks` reads from memory with `sys._getframe`, in every form a stack has.

Run by interpreters.rs with the path of the probe library. Each check captures detached, as in an allocation of
PyTorch's, and asks CPython on the same line.
"""

import asyncio
import contextlib
import ctypes
import functools
import gc
import sys
import threading

attached = ctypes.PyDLL(sys.argv[1])
detached = ctypes.CDLL(sys.argv[1])
for library in (attached, detached):
    library.probe_capture.restype = ctypes.c_uint32
    library.probe_native.restype = ctypes.c_uint32
    library.probe_frames.restype = ctypes.c_char_p
    library.probe_capture_attached_only.restype = ctypes.c_uint32
    library.probe_frames_attached_only.restype = ctypes.c_char_p

MAX_DEPTH = 64
checked = 0


def frames_of(site, text=detached.probe_frames):
    """A site's frames: file, function, line."""
    lines = text(site).decode().splitlines()
    return [(file, name, int(line)) for file, name, line in (each.split("\t") for each in lines)]


def expected(frame):
    """What CPython says, innermost first."""
    found = []
    while frame is not None and len(found) < MAX_DEPTH:
        code = frame.f_code
        found.append((code.co_filename, code.co_name, frame.f_lineno or 0))
        frame = frame.f_back
    return found


def check():
    """The caller's stack."""
    global checked
    site, shown = detached.probe_capture(), expected(sys._getframe())
    assert frames_of(site) == shown, (frames_of(site), shown)
    again = [(detached if turn % 2 else attached).probe_capture() for turn in range(4)]
    assert len(set(again)) == 1, again
    assert attached.probe_verify() == 1
    site, shown = attached.probe_capture_attached_only(1), expected(sys._getframe())
    assert frames_of(site, detached.probe_frames_attached_only) == shown
    assert detached.probe_capture_attached_only(0) == 0
    checked += 1
    return 1


def recursive(depth):
    return check() if depth == 0 else recursive(depth - 1)


def generator(depth):
    check()
    if depth:
        yield from generator(depth - 1)
    yield check()


class Context:
    def __enter__(self):
        check()

    def __exit__(self, *_):
        check()

    def __getattr__(self, name):
        return check()

    def __del__(self):
        check()


def syntax():
    """Frames whose line is not the one that an expression began on."""
    check(
        # Spread over lines.
    ); check()  # fmt: skip  # noqa: E702
    [check() for _ in range(2)]
    {check(): check() for _ in range(2)}
    list(check() for _ in range(2))
    (lambda: check())()
    sum(
        check()
        for _ in range(2)
        if check()
    )  # fmt: skip

    class Body:
        check()

    with Context() as _, contextlib.suppress(ValueError):
        check()
        raise ValueError
    try:
        raise KeyError
    except KeyError:
        check()
    finally:
        check()
    match check():
        case 1 if check():
            check()
    # fmt: off
    check(



    )
    # fmt: on


def called_from_c():
    sorted([1, 2], key=lambda _: check())
    list(map(lambda _: check(), [1]))
    functools.reduce(lambda *_: check(), [1, 2])
    functools.lru_cache(maxsize=1)(check)()
    Context().attribute  # noqa: B018
    gc.collect()
    Context()


def compiled():
    """Code that is no file's, and whose names are in wide characters."""
    scope = {"check": check}
    names = ["<string>", "a.py", "größe.py", "目录/模块.py", "🦀.py", "half-\udc80.py"]
    for name in [name for name in names if "\udc80" not in name]:
        exec(compile("def größe():\n\n check()\ndef 函数():\n größe()\n函数()\nx = [check()\n]", name, "exec"), scope)
    eval("check()", scope)
    # The same addresses again and again, with another content.
    for number in range(200):
        source = f"def f{number % 10}():\n{number % 7 * chr(10)} check()\nf{number % 10}()"
        exec(compile(source, f"<{number % 3}>", "exec"), scope)
    # An interpreter may have half a surrogate in a file name; it cannot be printed, but read.
    exec(compile("site = capture()", names[-1], "exec"), scope | {"capture": detached.probe_capture}, found := {})
    assert frames_of(found["site"])[0][0] == "half-\\udc80.py"


async def awaited(depth):
    check()
    await asyncio.sleep(0)
    if depth:
        await awaited(depth - 1)
    async for _ in yielding():
        check()
    return [check() async for _ in yielding()]


async def yielding():
    check()
    yield check()
    check()


def on_threads():
    errors = []

    def run():
        try:
            for depth in range(20):
                recursive(depth)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors


def traced(trace):
    def ignore(*_):
        return ignore

    trace(ignore)
    try:
        syntax()
        recursive(3)
        list(generator(2))
    finally:
        trace(None)


def sites_differ():
    sites = [detached.probe_capture(), detached.probe_capture()]
    here = detached.probe_capture()
    assert sites[0] == sites[1] != here, "one for each line"


assert attached.probe_enable() == 1, "the layout of this interpreter is known"
assert attached.probe_verify() == 1
assert detached.probe_native() == 0, "a native thread runs no Python code"
for depth in (0, 1, 10, 59, 60, 61, 62, 63, 64, 65, 300):
    recursive(depth)
for _ in generator(5):
    check()
syntax()
called_from_c()
compiled()
asyncio.run(awaited(3))
on_threads()
sites_differ()
for trace in (sys.settrace, sys.setprofile):
    traced(trace)
assert checked > 400, checked
assert detached.probe_close() == 1
assert detached.probe_capture() == 0, "closed"
