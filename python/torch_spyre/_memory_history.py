"""Recording what happens in device memory, and snapshots of it in PyTorch's own form.

`torch.cuda._memory_viz` and https://pytorch.org/memory_viz open them unchanged. What is recorded, what it costs and
what is different from CUDA's: docs/history.md.
"""

from __future__ import annotations

import os
import pickle
import sys
import warnings
from collections.abc import Collection, Sequence
from inspect import signature
from typing import Any, Literal, TypeAlias

from torch_spyre._arguments import checked_bool, checked_int
from torch_spyre._index import DeviceLike, existing_index
from torch_spyre._lifecycle import core, lazy_init

Snapshot: TypeAlias = dict[str, Any]

_CONTEXTS = ("state", "alloc", "all")
_STACKS = ("python", "all")


def _record_memory_history(enabled: Literal["state", "all"] | bool | None = "all", *args: Any, **kwargs: Any) -> None:
    """Begins, changes or ends recording allocations and frees, with the Python stacks they come from.

    As `torch.cuda.memory._record_memory_history`, the older form with a bool included.

    Args:
        enabled: None ends it and forgets what was recorded; "state" keeps where live memory was allocated; "all" keeps
            a history of events too.
        context: which events get a stack: None for none at all, "state" for live memory only, "alloc" for allocations
            too, "all" for frees too.
        stacks: "python" or "all"; both record Python's frames alone.
        max_entries: how many events are kept, the newest; at most 4194304, which is what the default means. An event
            takes 64 bytes.
        device: the device; None for all.
        clear_history: whether to forget what was recorded before.
        skip_actions: actions that are not recorded.
        stream_file: a file that events of all devices are written to while they are recorded, for the user alone; `%p`
            in its name is the number of the process. A relative path begins at the working directory of this call. A
            stream that runs is ended. `enabled=None` for all devices ends it, as does the program's exit.
        stream_socket: whether `flexmem watch` may follow this process, run by the same user.

    Raises:
        ValueError: an argument has a value that is not allowed, or asks for what this device cannot record.
        OSError: the file or socket cannot be opened, or its place is not safe: as `open` raises it, with `errno` and
            `filename`. Nothing has changed then: what was recorded goes on as before, and so does a stream that runs.
            With one exception: if the disk has room for the beginning of the file but not for what is live, devices
            that were recorded before go on with the settings of this call.
    """
    if isinstance(enabled, bool):
        _record_in_older_form(enabled, *args, **kwargs)
    else:
        _record(enabled, *args, **kwargs)


def _record(
    enabled: str | None = "all",
    context: str | None = "all",
    stacks: str = "all",
    max_entries: int = sys.maxsize,
    device: DeviceLike = None,
    clear_history: bool = False,
    compile_context: bool = False,
    global_record_annotations: bool = False,
    skip_actions: Sequence[str] | None = None,
    record_pinned_host_memory: bool = False,
    record_cuda: bool = True,
    *,
    stream_file: str | os.PathLike[str] | None = None,
    stream_socket: bool = False,
) -> None:
    if enabled not in (None, "state", "all"):
        raise ValueError(f"enabled={enabled!r}: expected 'state', 'all' or None")
    if context is not None and context not in _CONTEXTS:
        raise ValueError(f"context={context!r}: expected 'state', 'alloc', 'all' or None")
    if stacks not in _STACKS:
        raise ValueError(f"stacks={stacks!r}: expected 'python' or 'all'")
    checked_int("max_entries", max_entries, "a number of events", 0)
    checked_bool("clear_history", clear_history)
    checked_bool("stream_socket", stream_socket)
    skipped = _checked_actions(skip_actions)
    unsupported = {
        "compile_context": compile_context,
        "global_record_annotations": global_record_annotations,
        "record_pinned_host_memory": record_pinned_host_memory,
    }
    for name, value in unsupported.items():
        if value:
            raise ValueError(f"{name}={value!r}: spyre does not record that; expected False")
    if not record_cuda:
        raise ValueError("record_cuda=False leaves nothing to record on spyre; expected True, or enabled=None")
    file = _checked_path(stream_file)
    has_stream = file is not None or stream_socket
    if has_stream and (enabled != "all" or max_entries == 0):
        raise ValueError("stream_file and stream_socket need events; expected enabled='all' and max_entries above 0")
    lazy_init()
    indices = list(_indices(device))
    if enabled is None:
        try:
            if device is None:
                end_stream()  # Before what it has not seen yet is forgotten.
        finally:  # Its warning may be raised as an error.
            core().stop_history(indices)
    else:
        kept = min(max_entries, sys.maxsize) if enabled == "all" else 0
        former = core().history_stream()
        core().record_history(indices, kept, context, clear_history, skipped, file, stream_socket)
        if has_stream and former is not None and former["running"]:
            _warn_of_failed_file(former)


def _checked_path(file: Any) -> str | None:
    expected = "expected a path, such as '/tmp/run-%p.trace', or None"
    if file is None:
        return None
    if not isinstance(file, (str, os.PathLike)):
        raise TypeError(f"stream_file={file!r}: {expected}")
    path = os.fsdecode(file)
    if not path or "\0" in path:
        raise ValueError(f"stream_file={file!r}: {expected}")
    return path


def _checked_actions(actions: Any) -> list[str]:
    """Refuses what is no sequence of names; which names there are the extension knows."""
    if actions is None:
        return []
    if isinstance(actions, str) or not isinstance(actions, Collection):
        raise TypeError(f"skip_actions={actions!r}: expected a list of actions, or None")
    for action in actions:
        if not isinstance(action, str):
            raise TypeError(f"skip_actions={actions!r}: expected names of actions, and {action!r} is not a str")
    return list(actions)


def _record_in_older_form(
    enabled: bool,
    record_context: bool = True,
    trace_alloc_max_entries: int = 1,
    trace_alloc_record_context: bool = False,
    device: DeviceLike = None,
    record_context_cpp: bool = False,
    clear_history: bool = False,
    compile_context: bool = False,
    global_record_annotations: bool = False,
    skip_actions: Sequence[str] | None = None,
    record_pinned_host_memory: bool = False,
    record_cuda: bool = True,
    *,
    stream_file: str | os.PathLike[str] | None = None,
    stream_socket: bool = False,
) -> None:
    context = "alloc" if trace_alloc_record_context else "state" if record_context else None
    _record(
        "all" if enabled else None,
        context,
        "all" if record_context_cpp else "python",
        trace_alloc_max_entries,
        device,
        clear_history,
        compile_context,
        global_record_annotations,
        skip_actions,
        record_pinned_host_memory,
        record_cuda,
        stream_file=stream_file,
        stream_socket=stream_socket,
    )


_record_memory_history.__signature__ = signature(_record)  # type: ignore[attr-defined]


def _history_stream() -> dict[str, Any] | None:
    """The stream that `_record_memory_history` or the environment has started, also when it has ended.

    Returns:
        None if there was none. Else `running`, `file` and `socket` (absolute paths, or None), `clients` that are
        connected, `events` that came from the histories, `lost_events` that these had overwritten before,
        `dropped_events` that clients did not read in time or that came after the file had failed, and `file_error`,
        why it did.
    """
    lazy_init()
    return core().history_stream()


def end_stream() -> None:
    """Ends the stream, if one runs, and warns if not all of it could be written."""
    before = core().history_stream()
    if before is None or not before["running"]:
        return
    in_time = core().stop_history_stream()
    stream = core().history_stream()
    if not in_time:
        warnings.warn("the stream of the memory history could not end within five seconds", stacklevel=2)
    elif stream is not None:
        _warn_of_failed_file(stream)


def _warn_of_failed_file(stream: dict[str, Any]) -> None:
    """Warns, at the end of a stream, that its file was given up."""
    if stream["file_error"] is not None:
        warnings.warn(f"{stream['file']} is not whole: {stream['file_error']}", stacklevel=3)


def _snapshot(device: DeviceLike = None, augment_with_fx_traces: bool = False) -> Snapshot:
    """The memory of the devices and what was recorded, as `torch.cuda.memory._snapshot` returns it.

    Beside PyTorch's own keys, `history` says for each device whether it is recording and how many events the trace
    misses, and a trace has the actions `pressure_begin`, `pressure_end` and `gc_collect`.

    Args:
        device: the device; None, as in torch.cuda, is all devices.
        augment_with_fx_traces: must be False.

    Raises:
        ValueError: `augment_with_fx_traces` is true.
    """
    if augment_with_fx_traces:
        raise ValueError("augment_with_fx_traces=True: spyre does not record that; expected False")
    lazy_init()
    wanted = _indices(device)
    segments: list[dict[str, Any]] = []
    traces: list[list[dict[str, Any]]] = []
    histories: list[dict[str, Any]] = []
    for index in range(core().device_count()):
        trace: list[dict[str, Any]] = []
        lost = 0
        if index in wanted:
            own_segments, trace, lost = core().memory_snapshot(index, True)
            segments += own_segments
        traces.append(trace)
        histories.append({"recording": core().is_recording_history(index), "lost_events": lost})
    return {
        "segments": segments,
        "device_traces": traces,
        "allocator_settings": _allocator_settings(),
        "external_annotations": [],
        "history": histories,
    }


def _dump_snapshot(
    filename: str | os.PathLike[str] = "dump_snapshot.pickle", augment_with_fx_traces: bool = False
) -> None:
    """Writes `_snapshot()` to a file that https://pytorch.org/memory_viz opens.

    Args:
        filename: where to.
        augment_with_fx_traces: must be False.

    Raises:
        OSError: the file cannot be written.
    """
    snapshot = _snapshot(augment_with_fx_traces=augment_with_fx_traces)
    with open(filename, "wb") as file:
        pickle.dump(snapshot, file)


def _indices(device: DeviceLike) -> Sequence[int]:
    return range(core().device_count()) if device is None else [existing_index(device)]


def _allocator_settings() -> dict[str, Any]:
    """The settings in force: those of CUDA's that readers of snapshots look for, and our own."""
    return {
        "PYTORCH_CUDA_ALLOC_CONF": "",
        "max_split_size": -1,
        "garbage_collection_threshold": 0.0,
        "expandable_segments": False,
        "roundup_power2_divisions": {},
        "TORCH_SPYRE_ALLOC_CONF": os.environ.get("TORCH_SPYRE_ALLOC_CONF", ""),
        "spyre": core().configuration(),
    }
