"""Check that a saved page and the served demo work in Firefox."""

import pytest

from demo_server import address_of
from family import encoder_decoder
from firefox import FIREFOX, firefox
from saved_models import save, with_tokenizer
from vanilla_transformer.inside import explore


pytestmark = [pytest.mark.browser, pytest.mark.skipif(FIREFOX is None, reason="Firefox is not installed")]
TEXTS = ["one two three", "uno dos tres"] * 3
IN_PAGE = """
const root = document.querySelector("[id^=explorer-]").shadowRoot;
const one = (selector) => root.querySelector(selector);
const all = (selector) => [...root.querySelectorAll(selector)];
const until = async (test) => {
  for (const start = performance.now(); !test(); await new Promise((resolve) => setTimeout(resolve, 50)))
    if (performance.now() - start > 100000) throw new Error(`Waited in vain for ${test}`);
};
const press = (name) => all("button").find((it) => (it.ariaLabel ?? it.textContent).trim() === name).click();
"""
WALK = """
const told = () => all(".message").filter((it) => !it.hidden).map((it) => it.textContent).join();
await until(() => one(".scene") && !one(".explorer").classList.contains("busy"));
press("All switches");
await until(() => one(".broken input"));
one(".broken input").click();
await until(() => one(".beside .verdict") && !one(".beside").classList.contains("waits"));
one(".broken input").click();
await until(() => one(".beside").hidden);
press("Tour");
await until(() => one(".tour h2"));
press("Next stop");
const title = one(".tour h2").textContent;
press("Leave the tour");
press("Skip the division by √d_k");
await until(() => one(".predictions button"));
one(".predictions button").click();
await until(() => one(".lab .verdict"));
return [title, one(".lab .verdict").textContent, told()];
"""


@pytest.fixture(params=["saved page", "served demo"])
def address(request, tmp_path):
    if request.param == "served demo":
        with address_of(save(tmp_path / "model", encoder_decoder, "seq2seq", texts=TEXTS)) as address:
            yield address
    else:
        model, tokenizer = with_tokenizer(encoder_decoder, "seq2seq", texts=TEXTS)
        explore(model, tokenizer, TEXTS[0]).save(tmp_path / "page.html")
        yield (tmp_path / "page.html").as_uri()


def test_switches_tour_and_experiments_work_in_firefox(address, tmp_path_factory):
    with firefox(tmp_path_factory.mktemp("profile")) as session:
        session.open(address)
        title, verdict, told = session.run(IN_PAGE + WALK)
    assert title == "Position"
    assert "tokens" in verdict
    assert told == ""
