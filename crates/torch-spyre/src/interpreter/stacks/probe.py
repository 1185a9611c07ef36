"""Calls a function on stacks of every form, so that it can compare how they are read."""


def probe(compare):
    """Calls `compare` in functions, generators, comprehensions, class bodies, compiled text and called from C."""

    def recursive(depth):
        return compare() if depth == 0 else recursive(depth - 1)

    def generator(depth):
        if depth:
            yield from generator(depth - 1)
        yield compare()

    async def coroutine(depth):
        if depth:
            await coroutine(depth - 1)
        compare()

    class Body:
        compare()

    compare()
    recursive(3)
    recursive(100)
    list(generator(3))
    [compare() for _ in range(2)]
    sorted([1, 2], key=lambda _: compare() or 0)
    exec("def f():\n\n  compare()\nf()", {"compare": compare})
    try:
        coroutine(2).send(None)
    except StopIteration:
        compare()
