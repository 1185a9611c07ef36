"""The page in a browser: what it shows equals `--json`, and every way to use it works."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from browser import Browser, Page

from conftest import ROOT, Report

SAMPLES = sorted((ROOT / "tests/data/snapshots").glob("*.pickle"))


def figure(device: dict[str, Any], field: str) -> Any:
    """The value at a path such as `peak.live_bytes`."""
    value: Any = device
    for name in field.split("."):
        value = value[name]
    return value


def view(page: Page) -> tuple[float, float]:
    shown = page.evaluate("[flexmemReport.app.view.from, flexmemReport.app.view.to]")
    return shown[0], shown[1]


def cursor(page: Page) -> int:
    return int(page.evaluate("flexmemReport.app.cursor"))


def colour_of_paper(page: Page) -> str:
    return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.stem)
def test_the_figures_of_every_device_equal_json(page: Page, make_report: Callable[..., Report], sample: Path) -> None:
    report = make_report(sample)
    page.open(report.path)
    assert page.evaluate("flexmemReport.summary.devices.length") == len(report.summary["devices"])
    for index, device in enumerate(report.summary["devices"]):
        page.evaluate(
            f"(() => {{ const list = document.querySelector('#device'); list.selectedIndex = {index};"
            "list.dispatchEvent(new Event('change')); })()"
        )
        page.frame()
        shown = page.evaluate(
            "[...document.querySelectorAll('[data-figure]')].map((each) => [each.dataset.figure, each.dataset.value,"
            " each.textContent])"
        )
        assert len(shown) >= 10
        for field, value, text in shown:
            # Times since 1970 aside, no figure of these files is beyond what a browser counts exactly.
            assert int(value) == figure(device, field), field
            assert f"{figure(device, field):,}" in text, field


def test_the_lists_equal_json(page: Page, training: Report) -> None:
    page.open(training.path)
    device = training.summary["devices"][0]
    cells = page.evaluate(
        "[...document.querySelectorAll('#sites tbody tr')].map((row) => [...row.cells].map((cell) =>"
        " cell.title || cell.textContent))"
    )
    assert len(cells) == len(device["sites"])
    for row, use in zip(cells, device["sites"], strict=True):
        label = training.summary["sites"][use["site"]]["label"]
        assert row[0].startswith(label)
        fields = ("peak_bytes", "at_peak_bytes", "at_end_bytes", "allocated_bytes")
        assert row[1:5] == [f"{use[field]:,} bytes" for field in fields]
        assert row[5] == f"{use['allocations']:,}"
    marks = page.evaluate("flexmemReport.app.marks.length")
    assert marks == sum(device[kind]["count"] for kind in ("out_of_memory", "pressure", "collections"))
    assert device["collections"]["count"] >= 2
    assert device["pressure"]["count"] >= 2
    cycles = page.evaluate(
        "[...document.querySelectorAll('#cycles tbody tr')]"
        ".map((row) => [row.cells[0].textContent, row.cells[2].title])"
    )
    assert cycles == [[cycle["type_name"], f"{cycle['bytes']:,} bytes"] for cycle in device["cycles"]["shown"]]


def test_the_cursor_begins_at_the_peak_and_the_holders_add_up(page: Page, training: Report) -> None:
    page.open(training.path)
    peak = training.summary["devices"][0]["peak"]
    assert cursor(page) == peak["moment"]
    text = page.text("#cursor-text")
    assert f"({peak['live_bytes']:,} bytes) in {peak['live_blocks']} blocks" in text
    assert f"({peak['reserved_bytes']:,} bytes)" in text
    held = page.evaluate("flexmemReport.app.state.held.map(({ site, bytes }) => [site, bytes])")
    expected = {use["site"]: use["at_peak_bytes"] for use in training.summary["devices"][0]["sites"]}
    assert dict(map(tuple, held)) == {site: size for site, size in expected.items() if size}
    assert sum(size for _, size in held) == peak["live_bytes"]


def test_hovering_over_the_chart_tells_exact_figures(page: Page, training: Report) -> None:
    page.open(training.path)
    page.hover("#timeline", 0.6)
    tip = page.text("#timeline-tip")
    assert not page.evaluate("document.querySelector('#timeline-tip').hidden")
    # More events than pixels, so a place stands for a few; the tip says which, and what was in use at the last.
    found = re.search(r"(?:to|event) ([\d,]+), at .*?(?:at the end|in use) .*?\(([\d,]+) bytes\)", tip)
    assert found, tip
    moment, live = (int(group.replace(",", "")) for group in found.groups())
    assert page.evaluate(f"flexmemReport.app.timeline.stateAt({moment}).liveBytes") == live


def test_hovering_over_the_map_tells_size_site_and_age(page: Page, training: Report) -> None:
    page.open(training.path)
    page.hover("#map", 0.01, 0.05)
    tip = page.text("#map-tip")
    assert re.search(r"\([\d,]+ bytes\).*layers\.py:\d+.*since event [\d,]+, [\d,]+ events ago, for .*at 0x7f", tip), (
        tip
    )
    assert "in the region of 1.00 GiB" in tip


def test_a_click_sets_the_cursor(page: Page, training: Report) -> None:
    page.open(training.path)
    page.click("#timeline", 0.3)
    before = cursor(page)
    assert before != training.summary["devices"][0]["peak"]["moment"]
    assert f"After event {before:,}" in page.text("#cursor-text")
    assert f"after event {before:,}" in page.text("#holders caption")
    page.click("#timeline", 0.8)
    assert cursor(page) > before


def test_the_wheel_zooms_and_a_drag_moves(page: Page, training: Report) -> None:
    page.open(training.path)
    whole = view(page)
    page.wheel("#timeline", -500)
    zoomed = view(page)
    assert zoomed[1] - zoomed[0] < (whole[1] - whole[0]) * 0.6
    page.drag("#timeline", 0.6, 0.4)
    moved = view(page)
    assert moved[0] > zoomed[0]
    assert moved[1] - moved[0] == pytest.approx(zoomed[1] - zoomed[0])
    assert cursor(page) == training.summary["devices"][0]["peak"]["moment"], "a drag is no click"
    page.click("#zoom-all")
    assert view(page) == whole


def test_zoomed_in_single_events_are_told(page: Page, training: Report) -> None:
    page.open(training.path)
    for _ in range(20):
        page.wheel("#timeline", -1000)
    page.hover("#timeline", 0.5)
    assert re.match(r"event [\d,]+, at .*in use", page.text("#timeline-tip"))


def test_the_keyboard_does_what_the_mouse_does(page: Page, training: Report) -> None:
    page.open(training.path)
    page.evaluate("document.querySelector('#timeline').focus()")
    start = cursor(page)
    page.press("ArrowLeft")
    assert cursor(page) == start - 1
    page.press("ArrowRight", shift=True)
    assert cursor(page) > start
    page.press("Home")
    assert cursor(page) == 0
    page.press("End")
    device = training.summary["devices"][0]
    assert cursor(page) == device["events"]
    end = device["end"]
    assert f"({end['live_bytes']:,} bytes) in {end['live_blocks']} blocks" in page.text("#cursor-text")
    page.press("[")
    marks = page.evaluate("flexmemReport.app.marks.map((mark) => mark.moment)")
    assert cursor(page) == max(moment for moment in marks if moment < device["events"])
    page.press("p")
    assert cursor(page) == device["peak"]["moment"]
    whole = view(page)
    page.press("+")
    zoomed = view(page)
    assert zoomed[1] - zoomed[0] < whole[1] - whole[0]
    page.press("-")
    page.press("0")
    assert view(page) == whole


def test_the_keyboard_goes_through_the_blocks_of_the_map(page: Page, training: Report) -> None:
    page.open(training.path)
    page.evaluate("document.querySelector('#map').focus()")
    page.press("ArrowRight")
    first = page.text("#map-text")
    page.press("ArrowRight")
    assert first.startswith("Block 1 of")
    assert page.text("#map-text").startswith("Block 2 of")
    page.press("Home")
    assert page.text("#map-text") == first


def test_every_control_can_be_reached_by_tab(page: Page, training: Report) -> None:
    page.open(training.path)
    reached = set()
    for _ in range(14):
        page.press("Tab")
        reached.add(page.evaluate("document.activeElement.id"))
    assert {"device", "search", "theme", "help-button", "zoom-in", "by-time", "timeline"} <= reached


def test_the_search_filters_lists_and_dims_the_rest(page: Page, training: Report) -> None:
    page.open(training.path)
    page.press("/")
    assert page.evaluate("document.activeElement.id") == "search"
    page.type("layers.py:120")
    rows = page.evaluate("[...document.querySelectorAll('#sites tbody tr')].map((row) => row.cells[0].textContent)")
    assert len(rows) == 1
    assert "layers.py:120" in rows[0]
    dimmed = page.evaluate("document.querySelectorAll('#legend .dimmed').length")
    assert dimmed == page.evaluate("document.querySelectorAll('#legend li').length") - 1
    assert len(page.evaluate("[...document.querySelectorAll('#holders tbody tr')].map(() => 1)")) == 1
    page.press("Escape")
    assert page.evaluate("document.querySelector('#search').value") == ""
    assert page.evaluate("document.querySelectorAll('#sites tbody tr').length") == 24


def test_the_help_opens_and_closes(page: Page, training: Report) -> None:
    page.open(training.path)
    page.press("?")
    assert page.evaluate("document.querySelector('#help').open")
    page.press("+")
    assert page.evaluate("flexmemReport.app.view.from") == 0, "keys do nothing behind the list of keys"
    page.press("Escape")
    assert not page.evaluate("document.querySelector('#help').open")


def test_dark_mode_follows_the_system_and_the_button(page: Page, training: Report) -> None:
    page.prefer("dark")
    page.open(training.path)
    dark = colour_of_paper(page)
    colours = page.evaluate("[flexmemReport.app.isDark, flexmemReport.app.colour('--paper')]")
    page.click("#theme")
    light = colour_of_paper(page)
    assert (dark, light) == ("rgb(15, 19, 23)", "rgb(255, 255, 255)")
    assert colours == [True, "#0f1317"]
    assert page.evaluate("[flexmemReport.app.isDark, flexmemReport.app.colour('--paper')]") == [False, "#ffffff"]
    page.press("d")
    assert colour_of_paper(page) == dark
    page.prefer("light")
    page.frame()
    assert colour_of_paper(page) == dark, "what was chosen stays"


def test_every_chart_has_a_table(page: Page, training: Report) -> None:
    page.open(training.path)
    for name in ("timeline", "map"):
        page.click(f"#{name}-details summary", 0.05)
        page.wait_for(f"document.querySelectorAll('#{name}-table tbody tr').length > 20")
    most = page.evaluate("[...document.querySelectorAll('#timeline-table tbody tr')].map((row) => row.cells[2].title)")
    assert f"{training.summary['devices'][0]['peak']['live_bytes']:,} bytes" in most
    sizes = page.evaluate("[...document.querySelectorAll('#map-table tbody tr')].map((row) => row.cells[1].title)")
    numbers = [int(size.removesuffix(" bytes").replace(",", "")) for size in sizes]
    assert numbers == sorted(numbers, reverse=True)


def test_by_time_the_same_is_shown(page: Page, training: Report) -> None:
    page.open(training.path)
    page.click("#by-time")
    page.click("#timeline", 0.5)
    assert 0 < cursor(page) < training.summary["devices"][0]["events"]


def test_a_failed_request_is_found(page: Page, snapshot: Report) -> None:
    page.open(snapshot.path)
    page.click("#to-oom")
    failure = snapshot.summary["devices"][0]["out_of_memory"]["shown"][0]
    assert failure["requested_bytes"] == 5308694528
    assert cursor(page) == failure["moment"]
    row = page.evaluate(
        "[...document.querySelector('#events tr.bad').cells].map((cell) => cell.title || cell.textContent)"
    )
    assert row[0] == f"{failure['moment']:,}"
    assert row[3] == "5,308,694,528 bytes"
    page.evaluate("flexmemReport.app.moveCursor(0)")
    page.frame()
    page.click("#events tr.bad button")
    assert cursor(page) == failure["moment"]


def test_a_phone_does_not_scroll_sideways(browser: Browser, training: Report, snapshot: Report) -> None:
    for report in (training, snapshot):
        with browser.page(360, 740, touch=True) as phone:
            phone.open(report.path)
            for name in ("timeline", "map"):
                phone.evaluate(f"document.querySelector('#{name}-details').open = true")
            phone.frame()
            assert phone.evaluate("document.documentElement.scrollWidth") == 360
            small = phone.evaluate(
                "[...document.querySelectorAll('p, td, th, dd, dt, button')].filter((each) => each.offsetParent &&"
                " parseFloat(getComputedStyle(each).fontSize) < 12).length"
            )
            assert small == 0
            assert phone.problems() == []


def test_on_paper_everything_is_there(page: Page, training: Report) -> None:
    page.open(training.path)
    page.command("Emulation.setEmulatedMedia", media="print")
    assert (
        page.evaluate("getComputedStyle(document.querySelector('#search').parentElement.parentElement).display")
        == "none"
    )
    assert page.evaluate("getComputedStyle(document.querySelector('#sites')).maxHeight") == "none"


def test_names_are_text_and_nothing_else(
    page: Page, make_report: Callable[..., Report], make_trace: Callable[..., Path]
) -> None:
    report = make_report(make_trace("--events", "3000", "--hostile"))
    assert "</script>" in report.summary["sites"][1]["label"]
    page.open(report.path)
    for name in ("timeline", "map"):
        page.evaluate(f"document.querySelector('#{name}-details').open = true")
    page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    page.hover("#timeline", 0.5)
    page.hover("#map", 0.01, 0.05)
    assert page.evaluate("document.title").startswith("Memory of")
    assert page.evaluate("document.querySelectorAll('img').length") == 0
    assert page.evaluate("document.querySelectorAll('script').length") == 1
    assert report.summary["sites"][1]["label"] in page.text("#sites")
    assert page.evaluate("document.documentElement.scrollWidth") == 1280


def test_the_policy_allows_no_other_script_and_no_request(browser: Browser, training: Report) -> None:
    with browser.page() as opened:
        opened.open(training.path)
        opened.evaluate(
            """(() => {
                const script = document.createElement("script");
                script.textContent = "document.title = 'run'";
                document.body.append(script);
                const image = document.createElement("img");
                image.src = "http://127.0.0.1:9/x.png";
                document.body.append(image);
            })()"""
        )
        opened.frame()
        assert opened.evaluate("document.title") != "run"
        refused = [problem for problem in opened.problems() if "Content Security Policy" in problem]
        assert len(refused) >= 2


def test_a_million_events_stay_smooth(
    page: Page, make_report: Callable[..., Report], make_trace: Callable[..., Path]
) -> None:
    report = make_report(make_trace("--events", "1000000", "--blocks", "16"))
    device = report.summary["devices"][0]
    assert device["events"] >= 1_000_000
    assert report.path.stat().st_size < 20 << 20
    assert device["buckets"] <= 1 << 16
    page.open(report.path)
    width = page.evaluate("document.querySelector('#timeline').clientWidth")

    def drawn() -> dict[str, Any]:
        page.frame()
        return dict(page.evaluate("flexmemReport.app.drawn"))

    def bound() -> int:
        # Four points for each column of pixels and band, and the lines and marks.
        return int(width * (4 * (device["bands"] + 1) + 2 + 9))

    first = drawn()
    assert first["bucketMoments"] == device["bucket_moments"] > 1
    assert 0 < first["points"] <= bound()
    for _ in range(12):
        page.wheel("#timeline", -700, 0.6)
    close = drawn()
    assert close["bucketMoments"] == 1, "closely, single events are shown"
    assert close["points"] <= bound()
    before = view(page)
    page.drag("#timeline", 0.8, 0.2, steps=20)
    after = drawn()
    assert view(page)[0] > before[0]
    assert after["frames"] > close["frames"]
    assert after["points"] <= bound()
    page.hover("#timeline", 0.5)
    assert page.text("#timeline-tip").startswith("event")
    assert "points of" in page.text("#left-out")


def test_single_events_agree_with_the_aggregates(
    page: Page, make_report: Callable[..., Report], make_trace: Callable[..., Path]
) -> None:
    report = make_report(make_trace("--events", "200000", "--blocks", "16"))
    assert report.summary["devices"][0]["bucket_moments"] > 1
    page.open(report.path)
    differences = page.evaluate(
        """(() => {
            const { timeline } = flexmemReport.app;
            const { base } = timeline;
            const wrong = [];
            for (const start of [0, 40000, 150000]) {
                const level = timeline.level(start, start + 4000);
                for (let moment = start; moment < start + 4000; moment += base.width) {
                    const bucket = timeline.bucket(base, moment);
                    const from = bucket * base.width - level.start;
                    const values = level.last.subarray(from, from + base.width);
                    const end = timeline.end(base, bucket) - level.start;
                    const found = [Math.max(...values), Math.min(...values), level.last[end], level.reserved[end],
                        level.blocks[end], ...level.bandLast.map((band) => band[end])];
                    const stated = [base.most[bucket], base.least[bucket], base.last[bucket], base.reserved[bucket],
                        base.blocks[bucket], ...base.bandLast.map((band) => band[bucket])];
                    if (found.join() !== stated.join()) wrong.push([moment, found, stated]);
                }
            }
            return wrong.slice(0, 3);
        })()"""
    )
    assert differences == []
