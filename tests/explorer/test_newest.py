"""Tests of explorer/page/newest.js: what is asked for first and arrives last is not shown."""

import pytest

from tests.explorer.toy import until

TEXT = "the+red+dog+sees+a+house"
# The next answer of the server arrives late, those after it at once.
LATE = """
const fetched = window.fetch;
window.late = window.arrived = 0;
window.fetch = async (...request) => {
  const waits = window.late;
  window.late = 0;
  const answer = await fetched(...request);
  if (waits) {
    await new Promise((done) => setTimeout(done, waits));
    window.arrived = 1;
  }
  return answer;
};
"""
RESTED = "!document.querySelector('[aria-busy=true]')"


def choose(label, *values):
    """Actions that choose one value after the other in a menu."""
    return [lambda tab, v=v: tab.get_by_role("combobox", name=label).select_option(label=v) for v in values]


def press(*names):
    return [lambda tab, n=n: tab.get_by_role("button", name=n, exact=True).click() for n in names]


VIEWS = {
    "alignment": (".matrix canvas", choose("head", "head 1", "head 2")),
    "heads": (
        ".thumb",
        press("Cross-attention, layer 1, head 2", "Decoder self-attention, layer 1, head 1"),
    ),
    "compare": (".triple canvas", choose("head", "head 1", "head 2")),
    "trust": (".figure", press("hund", "ein")),
    "whatif": (
        ".matrix canvas",
        choose("attention", "Cross-attention, layer 1", "Decoder self-attention, layer 2"),
    ),
}


@pytest.mark.parametrize("view", VIEWS)
def test_an_older_answer_does_not_replace_a_newer_one(tab, address, view):
    ready, actions = VIEWS[view]
    tab.add_init_script(LATE)
    tab.goto(f"{address}?view={view}&text={TEXT}&other=the+small+dog+sees+a+house&level=tokens")
    tab.wait_for_selector(ready)
    tab.wait_for_load_state("networkidle")
    tab.evaluate("window.late = 900")
    actions[0](tab)
    until(tab, "window.late === 0")  # it has been asked for
    actions[1](tab)
    until(tab, "window.arrived")
    tab.wait_for_timeout(450)  # the line on trust waits until a choice rests
    tab.wait_for_function(RESTED)
    shown, chosen = tab.inner_text("main"), tab.url
    if view == "whatif":  # what is edited is not in the address
        assert tab.inner_text(".whatif h3") == "Edit here: Decoder self-attention, layer 2, mean of heads"
        return
    tab.goto("about:blank")
    tab.goto(chosen)
    tab.wait_for_selector(ready)
    tab.wait_for_load_state("networkidle")
    tab.wait_for_timeout(450)
    assert tab.inner_text("main") == shown
