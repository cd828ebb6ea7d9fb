"""A plugin of pytest: of each test function it keeps the first set of parameters."""


def pytest_collection_modifyitems(config, items):
    seen, kept, left = set(), [], []
    for item in items:
        name = item.nodeid.partition("[")[0]
        (left if name in seen else kept).append(item)
        seen.add(name)
    items[:] = kept
    config.hook.pytest_deselected(items=left)
