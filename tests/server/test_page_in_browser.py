"""The page as a person uses it, in a headless browser, before an engine whose words are given."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from chiasm.schema.chat import ImagePart, TextPart, VideoPart
from chiasm.schema.output import EngineStats
from chiasm.schema.steps import EncoderBegan, NamedNews, StepsEnded, UnitName, UnitRows
from tests.browser import Browser, needs_chromium
from tests.clocks import wait_until
from tests.server.fake_engine import FakeEngine
from tests.server.running import RunningServer, as_new

pytestmark = needs_chromium


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as browser:
        yield browser


@pytest.fixture
def page(browser: Browser, server: RunningServer) -> Iterator[Browser]:
    """The page, loaded and connected; nothing in it may fail, nor may it ask anybody but its server."""
    browser.problems.clear()
    browser.requests.clear()
    browser.resize(1280, 800)
    browser.open(server.url)
    browser.wait("document.querySelectorAll('.lane').length === 2")
    yield browser
    assert browser.problems == []
    own = (f"{server.url}/", f"blob:{server.url}/", "data:")
    assert [url for url in browser.requests if not url.startswith(own)] == []
    browser.open("about:blank")
    wait_until(lambda: server.engine.is_idle)


def ask(page: Browser, text: str = "What?") -> None:
    page.run("document.getElementById('question').focus()")
    page.type(text)
    page.press("Enter")


def answered(page: Browser, text: str = "What?") -> None:
    """Ask and wait for the end."""
    ask(page, text)
    page.wait("document.querySelector('.turn.assistant') && !document.querySelector('.waiting')")


def picture(folder: Path, name: str = "dot.png") -> Path:
    Image.new("RGB", (8, 8), "red").save(folder / name, "PNG")
    return folder / name


def test_an_answer_streams_as_markdown_with_its_numbers(page: Browser, engine: FakeEngine) -> None:
    engine.words = ("# Title\n\n", "Some **bold", "** and `code`:\n\n- one\n", "- two\n")
    engine.words_before_hold = 2
    ask(page)
    page.wait(
        "document.querySelector('.answer strong') || document.querySelector('.answer')?.innerText.includes('Some')"
    )
    assert page.run("document.querySelector('.answer h1').innerText") == "Title"
    assert page.run("document.querySelector('.turn.assistant').getAttribute('aria-busy')") == "true"
    assert page.run("document.getElementById('stop').hidden || !document.getElementById('send').hidden") is False
    engine.words_before_hold = None
    page.wait("!document.querySelector('.waiting')")
    assert page.run("document.querySelector('.answer strong').innerText") == "bold"
    assert page.run("[...document.querySelectorAll('.answer li')].map((one) => one.innerText)") == ["one", "two"]
    meta = page.text(".meta")
    assert "first token after 0." in meta
    assert "1 prompt tokens" in meta
    assert "4 generated" in meta


ATTACKS = (
    "<img src=x onerror=document.title='pwned'>", "<script>document.title='pwned'</script>",
    "[click](javascript:document.title='pwned')", "[click]( javascript:alert(1))", "[c](JaVaScRiPt:alert(1))",
    "![x](https://evil.test/leak.png)", "[a](data:text/html,<script>alert(1)</script>)", "<svg/onload=alert(1)>",
    "[x](https://evil.test/\" onmouseover=\"alert(1))", "`<b>code</b>`",
    "| <i>a</i> | b |\n|---|---|\n| <b>c</b> | d |",
    "```html\n<iframe src=javascript:alert(1)>\n```", "<https://evil.test/><style>*{display:none}</style>",
    "<a href=\"https://evil.test\">x</a>", "> - > - > - > - > - > - > - > - > - > - > - > deep",
    "**" * 400, "[" * 2000,
)  # fmt: skip


def test_what_a_model_writes_is_never_markup(page: Browser, engine: FakeEngine) -> None:
    engine.words = tuple(f"{attack}\n\n" for attack in ATTACKS)
    answered(page)
    kinds = page.run("[...new Set([...document.querySelectorAll('.answer *')].map((one) => one.localName))]")
    allowed = {"p", "br", "a", "code", "pre", "table", "thead", "tbody", "tr", "th", "td", "blockquote", "ul", "li"}
    assert set(kinds) <= allowed | {"strong", "em", "hr"}
    links = page.run("[...document.querySelectorAll('.answer a')].map((one) => [one.href, one.rel, one.target])")
    assert links
    for address, rel, target in links:
        assert address.startswith("https://evil.test/")
        assert "noopener" in rel
        assert target == "_blank"
    attributes = page.run("[...document.querySelectorAll('.answer *')].flatMap((one) => one.getAttributeNames())")
    assert set(attributes) <= {"href", "rel", "target"}
    assert page.run("document.title") == "chiasm"
    shown = page.text(".answer")
    assert "<img src=x onerror=" in shown
    assert "<script>document.title='pwned'</script>" in shown
    assert "<b>code</b>" in shown


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("a\nb", "p[a br b]"),
        ("a *b* **c *d* e** ~~f~~", "p[a  em[b]   strong[c  em[d]  e]   del[f]]"),
        ("2 * 3 * 4 and snake_case_name", "p[2 * 3 * 4 and snake_case_name]"),
        ("3. x\n4. y\n   - z", "ol[li[x] li[y ul[li[z]]]]"),
        ("```py\na *b*\n```\nc", "pre[code[a *b*]] p[c]"),
        ("```\nopen", "pre[code[open]]"),
        ("> q\n> r", "blockquote[p[q br r]]"),
        ("a | b\n--|--\n1 | `2`", "table[thead[tr[th[a] th[b]]] tbody[tr[td[1] td[code[2]]]]]"),
        ("## T #\n---\n***", "h2[T] hr[] hr[]"),
        (r"\*a\* `` b`c ``", "p[*a*  code[b`c]]"),
        ("[l](https://x.test/a?b=c) https://y.test.", "p[a[l]   a[https://y.test.]]"),
        ("[x](notes.html) [ ] todo", "p[x [ ] todo]"),
        ("# C#\n#  a b  ##  \n# #\n#no", "h1[C#] h1[a b] h1[] p[#no]"),
        ("~~~ a`b\nc\n~~~\n```a`b", "pre[code[c]] p[```a`b]"),
        (r"\``` ``a` b``` c``", "p[` code[ ] a` b``` c``]"),
        (r"\``` a` b", "p[``` a` b]"),
        ("- a\n\n  b\n\n\nc", "ul[li[a p[b]]] p[c]"),
        ("a\r\n\r\nb", "p[a] p[b]"),
    ],
)
def test_markdown(page: Browser, text: str, tree: str) -> None:
    script = """(async () => {
      const { GrowingText } = await import("/ui/markdown.js");
      const made = document.createElement("div");
      new GrowingText(made).show(TEXT);
      const show = (node) => node.nodeType === 3 ? node.data : node.localName === "br" ? "br"
        : `${node.localName}[${[...node.childNodes].map(show).join(" ")}]`;
      made.normalize();
      return [...made.childNodes].map(show).join(" ");
    })()"""
    assert page.run(script.replace("TEXT", json.dumps(text))) == tree


NASTY = {
    "spaces in a heading": "'# a' + ' '.repeat(N) + 'b'",
    "marks of a heading": "'# ' + '#'.repeat(N) + 'b'",
    "a fence that is none": "'```' + ' '.repeat(N / 2) + 'a'.repeat(N / 2) + '`'",
    "a fence of tildes": "'~'.repeat(N / 2) + 'a'.repeat(N / 2) + '`'",
    "spaces in a rule": "'- -' + ' '.repeat(N) + 'x'",
    "a rule that is none": "'- '.repeat(N / 2) + 'x'",
    "spaces in an item": "'- ' + ' '.repeat(N) + 'x\\u2028'",
    "spaces before a table's rule": "'a|b\\n' + ' '.repeat(N) + 'x'",
    "a table's rule that is none": "'a|b\\n' + '|:- '.repeat(N / 4) + 'x'",
    "spaces behind a table's rule": "'a|b\\n-|-' + ' '.repeat(N) + 'x'",
    "columns": "'|'.repeat(N / 4) + '\\n' + '|-'.repeat(N / 4) + '\\n' + '|a'.repeat(N / 8)",
    "empty lines in an item": "'- a\\n' + '\\n'.repeat(N) + '  b'",
    "items": "'- a\\n'.repeat(N / 4)",
    "lines of an item": "'- a\\n' + '  b\\n'.repeat(4 * N)",
    "items in one another": "Array.from({ length: 450 }, (_, depth) => ' '.repeat(depth) + '- a').join('\\n')",
    "quotes in one another": "('>'.repeat(50) + '\\n').repeat(N / 50)",
    "stars": "'*'.repeat(N)",
    "bold that never ends": "'**a '.repeat(N / 4)",
    "bold in bold": "'**a'.repeat(N / 3)",
    "emphasis that never ends": "'*a '.repeat(N / 3)",
    "deletions that never end": "'~~a '.repeat(N / 4)",
    "underlines": "'_a__'.repeat(N / 4)",
    "code that never ends": "'`'.repeat(N) + 'x'",
    "code of many lengths": "Array.from({ length: 440 }, (_, length) => '`'.repeat(length)).join('a')",
    "code of a growing length": "'`a``b '.repeat(N / 6) + '```'",
    "brackets": "'['.repeat(N)",
    "brackets before an address": "'['.repeat(1000) + '](' + 'x'.repeat(N)",
    "links that never end": "'[a]('.repeat(N / 4)",
    "addresses": "'https://'.repeat(N / 8)",
    "backslashes": "'\\\\'.repeat(N)",
    "a word": "'a'.repeat(N)",
    "lines": "'a\\n'.repeat(N / 2)",
}


@pytest.mark.parametrize("text", NASTY.values(), ids=NASTY)
def test_no_text_holds_up_the_page(page: Browser, text: str) -> None:
    """Eight times as much of it takes about eight times as long, or a moment; what is quadratic takes 64 times."""
    script = """(async () => {
      const { GrowingText } = await import("/ui/markdown.js");
      const make = (N) => TEXT;
      const time = (text) => {
        const start = performance.now();
        new GrowingText(document.createElement("div")).show(text);
        return performance.now() - start;
      };
      const best = (N) => Math.min(...[1, 2, 3].map(() => time(make(N))));
      return [best(12_500), best(100_000)];
    })()"""
    little, much = page.run(script.replace("TEXT", text))
    assert much < max(3 * 8 * little, 100)


GROWING = (
    "# T\n\na *b*\n- x\n\n  y\n- z\n\n1. w\n***\n***bold** text\n> q\n> r\n\n```js\nc\n\n- d\n```\ne\n\n"
    "a | b\n--|--\n1 | 2\n\nc | d\n\n--|--\n- - -\n- - - a\r\n\r\n## U\r\n~~~\nopen\n\n# no heading"
)


@pytest.mark.parametrize("step", [1, 3])
def test_a_growing_text_looks_as_one_shown_at_once(page: Browser, step: int) -> None:
    script = """(async () => {
      const { GrowingText } = await import("/ui/markdown.js");
      const [made, whole] = [document.createElement("div"), document.createElement("div")];
      const growing = new GrowingText(made);
      const bad = [];
      let kept = null;
      for (let end = 0; end <= TEXT.length; end += STEP) {
        growing.show(TEXT.slice(0, end));
        whole.replaceChildren();
        new GrowingText(whole).show(TEXT.slice(0, end));
        if (made.innerHTML !== whole.innerHTML) bad.push([TEXT.slice(0, end), made.innerHTML, whole.innerHTML]);
        if (made.children.length === 3) kept ??= made.firstChild;
      }
      return { bad, isKept: made.firstChild === kept, blocks: made.children.length };
    })()"""
    result = page.run(script.replace("TEXT", json.dumps(GROWING)).replace("STEP", str(step)))
    assert result["bad"] == []
    assert result["isKept"]
    assert result["blocks"] > 12


def test_a_long_answer_is_not_drawn_anew_for_each_word(page: Browser) -> None:
    script = """(async () => {
      const { GrowingText } = await import("/ui/markdown.js");
      const made = document.createElement("div");
      const growing = new GrowingText(made);
      const text = "Some **words** of a paragraph with `code`.\\n\\n- an item\\n- another\\n\\n".repeat(800);
      let added = 0;
      const observer = new MutationObserver((changes) => {
        for (const change of changes) added += change.addedNodes.length;
      });
      observer.observe(made, { childList: true });
      for (let end = 0; end <= text.length; end += 50) growing.show(text.slice(0, end));
      await null;
      return { added, length: text.length, blocks: made.children.length };
    })()"""
    result = page.run(script)
    assert result["length"] > 50_000
    assert result["blocks"] == 1600
    assert result["added"] < 5 * result["blocks"]


def test_what_takes_long_to_draw_is_drawn_less_often(page: Browser) -> None:
    script = """(async () => {
      const { AnswerView } = await import("/ui/conversation.js");
      const view = new AnswerView(document.getElementById("turns"));
      view.drawingTime = 100;
      const start = performance.now();
      const drawn = new Promise((resolve) => new MutationObserver(resolve).observe(view.body, { childList: true }));
      view.add({ text: "a", reasoning: "" });
      await drawn;
      return performance.now() - start;
    })()"""
    assert page.run(script) >= 295


def test_media_by_drop_choice_paste_and_address(page: Browser, engine: FakeEngine, tmp_path: Path) -> None:
    page.drop(picture(tmp_path))
    page.wait("document.querySelectorAll('#attached li').length === 1")
    page.choose_files("#files", picture(tmp_path, "two.png"))
    page.wait("document.querySelectorAll('#attached li').length === 2")
    page.run("""(() => {
      const data = new DataTransfer();
      data.items.add(new File([new Uint8Array([0, 0, 0])], "clip.mp4", { type: "video/mp4" }));
      document.dispatchEvent(new ClipboardEvent("paste", { clipboardData: data }));
    })()""")
    page.wait("document.querySelectorAll('#attached li').length === 3")
    page.run("document.getElementById('by-url').open = true; document.getElementById('url').focus()")
    page.type("https://example.com/a.jpg")
    page.press("Enter")
    page.wait("document.querySelectorAll('#attached li').length === 4")
    page.run("document.querySelector('#attached li:nth-child(2) button').click()")
    answered(page, "And?")
    [[message], _] = engine.conversations[0]
    kinds = [type(part) for part in message.content]
    assert kinds == [ImagePart, VideoPart, ImagePart, TextPart]
    sources = [part.source for part in message.content if not isinstance(part, TextPart)]
    assert sources[0].startswith("data:image/png;base64,iVBOR")
    assert sources[1] == "data:video/mp4;base64,AAAA"
    assert sources[2] == "https://example.com/a.jpg"
    assert page.run("document.getElementById('attached').hidden") is True
    page.problems[:] = [one for one in page.problems if "ERR_" not in one]  # three bytes are no clip to play


@pytest.mark.parametrize("size", [(1280, 800), (390, 844)])
def test_the_end_stays_in_view_when_a_picture_grows(page: Browser, tmp_path: Path, size: tuple[int, int]) -> None:
    page.resize(*size)
    page.choose_files("#files", picture(tmp_path))
    page.wait("document.querySelectorAll('#attached li').length === 1")
    answered(page)
    page.run("""(() => {
      const image = document.querySelector(".media img");
      image.style.maxHeight = image.style.height = "900px";
      image.dispatchEvent(new Event("load"));
    })()""")
    bottoms = """["#turns .meta", "#composer"].map((one) => document.querySelector(one).getBoundingClientRect())"""
    page.wait(f"(([meta, composer]) => meta.bottom > 300 && meta.bottom < composer.top - 5)({bottoms})")


def test_a_picture_fills_its_frame(page: Browser, tmp_path: Path) -> None:
    Image.new("RGB", (900, 600)).save(tmp_path / "wide.png")
    page.choose_files("#files", tmp_path / "wide.png")
    page.wait("document.querySelectorAll('#attached li').length === 1")
    answered(page, "?")
    page.wait("document.querySelector('.media img').complete")
    widths = page.run(
        "['.media img', '.media'].map((one) => document.querySelector(one).getBoundingClientRect().width)"
    )
    assert widths[0] == pytest.approx(widths[1], abs=1)


def test_what_is_no_media_is_said(page: Browser, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no picture")
    page.drop(tmp_path / "notes.txt")
    page.wait("!document.getElementById('alert').hidden")
    assert page.text("#alert") == "notes.txt is neither an image nor a video."


def test_turns_go_along_and_can_be_forgotten(page: Browser, engine: FakeEngine) -> None:
    answered(page, "One")
    answered(page, "Two")
    conversation, _ = engine.conversations[-1]
    texts = [(message.role, message.content[0].text) for message in conversation]  # type: ignore[union-attr]
    assert texts == [("user", "One"), ("assistant", "Hello big world!"), ("user", "Two")]
    page.press("n", alt=True)
    page.wait("!document.querySelector('.turn')")
    answered(page, "Three")
    assert len(engine.conversations[-1][0]) == 1


def test_a_conversation_forgotten_while_it_is_answered_stays_so(page: Browser, engine: FakeEngine) -> None:
    engine.words_before_hold = 2
    ask(page, "Old")
    page.wait("document.querySelector('.answer')?.innerText.includes('Hello big')")
    # At once, before the old answer has ended: the new one must neither wait for it nor take its place.
    page.run("""(() => {
      document.getElementById('new').click();
      document.getElementById('question').value = 'New';
      document.getElementById('send').click();
    })()""")
    page.wait("document.querySelector('.answer')?.innerText.includes('Hello big')")
    wait_until(lambda: engine.num_aborted == 1)
    page.run("new Promise((resolve) => setTimeout(resolve, 50))")
    assert page.run("document.getElementById('stop').hidden || !document.getElementById('send').hidden") is False
    engine.words_before_hold = None
    page.wait("!document.querySelector('.waiting')")
    assert page.run("document.querySelectorAll('.turn').length") == 2
    answered(page, "Next")
    asked = [[message.content[0].text for message in conversation] for conversation, _ in engine.conversations]  # type: ignore[union-attr]
    assert asked == [["Old"], ["New"], ["New", "Hello big world!", "Next"]]


@pytest.fixture(scope="module")
def _thinking_server() -> Iterator[RunningServer]:
    with RunningServer(reasoning_parser="qwen3") as server:
        yield server


@pytest.fixture
def thinking(browser: Browser, _thinking_server: RunningServer) -> Iterator[FakeEngine]:
    """The engine of the page in ``browser``, whose words between marks are reasoning."""
    with as_new(_thinking_server):
        browser.problems.clear()
        browser.open(_thinking_server.url)
        browser.wait("document.querySelectorAll('.lane').length === 2")
        _thinking_server.engine.words = (
            "<think>",
            "Let me ",
            "<b>think</b>\n",
            "well.",
            "</think>",
            "**Yes**",
            " it is",
        )
        yield _thinking_server.engine
        assert browser.problems == []
        browser.open("about:blank")


FOLD = "document.querySelector('.thoughts')"


def test_reasoning_is_shown_until_the_answer_begins(browser: Browser, thinking: FakeEngine) -> None:
    thinking.words_before_hold = 4
    ask(browser)
    browser.wait(f"{FOLD}?.innerText.includes('well.')")
    assert browser.run(f"{FOLD}.open")
    assert browser.text(".thoughts div") == "Let me <b>think</b>\nwell."
    assert browser.text(".answer").strip() == ""
    assert "first token after 0." in browser.text(".meta")
    thinking.words_before_hold = None
    browser.wait("!document.querySelector('.waiting')")
    assert browser.text(".answer strong") == "Yes"
    assert not browser.run(f"{FOLD}.open")
    browser.run("document.getElementById('turns').focus()")
    browser.press("Tab")
    assert browser.run("document.activeElement.innerText") == "Reasoning"
    browser.press("Enter")
    browser.wait(f"{FOLD}.open")
    answered(browser, "More")
    earlier = thinking.conversations[-1][0][1]
    assert earlier.content == (TextPart("**Yes** it is"),)
    assert earlier.extra == {"reasoning": "Let me <b>think</b>\nwell."}


def test_reasoning_stays_as_its_reader_has_folded_it(browser: Browser, thinking: FakeEngine) -> None:
    thinking.words_before_hold = 3
    ask(browser)
    for _ in range(2):
        browser.wait(f"{FOLD}?.innerText")
        browser.run(f"{FOLD}.querySelector('summary').click()")
    thinking.words_before_hold = None
    browser.wait("!document.querySelector('.waiting')")
    assert browser.run(f"{FOLD}.open")


@pytest.mark.parametrize(("max_tokens", "said"), [(512, "without an answer"), (2, "Settings can allow a longer one")])
def test_an_answer_of_reasoning_only_is_told_and_kept(
    browser: Browser, thinking: FakeEngine, max_tokens: int, said: str
) -> None:
    thinking.words = ("<think>", "Hm, ", "well")
    browser.run(f"document.getElementById('max-tokens').value = {max_tokens}")
    answered(browser, "One")
    assert said in browser.text(".error")
    assert browser.run(f"{FOLD}.open")
    assert browser.text(".thoughts div").startswith("Hm,")
    answered(browser, "Two")
    conversation = thinking.conversations[-1][0]
    assert [message.role for message in conversation] == ["user", "assistant", "user"]
    assert conversation[1].content == (TextPart(""),)
    assert conversation[1].extra["reasoning"].startswith("Hm,")


@pytest.mark.parametrize("by", ["Escape", "button"])
def test_stopping_ends_the_work(page: Browser, engine: FakeEngine, by: str) -> None:
    engine.words_before_hold = 2
    ask(page)
    page.wait("document.querySelector('.answer')?.innerText.includes('Hello big')")
    if by == "Escape":
        page.press("Escape")
    else:
        page.run("document.getElementById('stop').click()")
    page.wait("!document.querySelector('.waiting')")
    wait_until(lambda: engine.num_generating == 0)
    assert engine.num_aborted == 1
    assert page.text(".error") == "Stopped."
    engine.words_before_hold = None
    answered(page, "Go on")
    assert [message.role for message in engine.conversations[-1][0]] == ["user", "assistant", "user"]


def test_an_error_is_told_in_the_servers_words(page: Browser, engine: FakeEngine) -> None:
    answered(page, "too long")
    assert page.text(".error") == "The prompt has 300 tokens; max_model_len is 256."
    assert [one for one in page.problems if "400" not in one] == []
    page.problems.clear()


def test_a_key_is_asked_for(browser: Browser) -> None:
    with RunningServer(api_keys=("k1",)) as server:
        browser.open(server.url)
        browser.wait("document.getElementById('alert').innerText.includes('API key')")
        assert browser.run("document.activeElement.id") == "key"
        browser.type("k1")
        browser.press("Tab")
        browser.wait("document.getElementById('model').innerText === 'org/fake-vl'")
        answered(browser)
        assert browser.text(".answer").strip() == "Hello big world!"
        browser.run("sessionStorage.clear()")
        browser.open("about:blank")
    browser.problems.clear()


def news(engine: FakeEngine, *events: Any) -> None:
    engine.news = engine.news + list(events)


def test_the_ranks_are_shown_at_work(page: Browser, engine: FakeEngine) -> None:
    names = {"k": UnitName("other", "video", 0, 2, 8), "w": UnitName("other", "image", 1, 0, 1)}
    lanes = ((UnitRows("k", 0, 64, 96), UnitRows("w", 0, 40, 40)), (UnitRows("k", 64, 96, 96),))
    news(engine, NamedNews(EncoderBegan(7, 100.0, "cut by rows", 0.5, 0, 2, 4, lanes), names))
    page.wait("document.querySelectorAll('.block.open').length === 2")
    page.wait("document.getElementById('feed').innerText === 'encoding'")
    pieces = "[...document.querySelectorAll('.lane')].map((lane) => [...lane.querySelectorAll('.block i')].length)"
    assert page.run(pieces) == [2, 1]
    now = page.run("[...document.querySelectorAll('.now')].map((one) => one.textContent)")
    part = ", layers to 50 %"
    assert now[0] == f"video 1, frames 5-6 of 16 of another request, rows 0-64 of 96 and 1 more{part}"
    assert now[1] == f"video 1, frames 5-6 of 16 of another request, rows 64-96 of 96{part}"
    assert page.text("#plans li").split("\n") == ["cut by rows", "1 plan, 2 units, predicted 500 ms"]
    gauges = EngineStats(num_running=3, num_waiting=1, kv_blocks=8, kv_blocks_used=2, units_encoded=5)
    news(engine, NamedNews(StepsEnded(100.5, 1, 0.1, gauges, 7, (0.4, 0.2), 0.4)))
    page.wait("document.getElementById('feed').innerText === 'idle'")
    assert page.text("#plans li .took") == "1 plan, 2 units, predicted 500 ms, took 400 ms"
    assert page.run("[...document.querySelectorAll('#gauges dd')].map((one) => one.innerText)")[:3] == [
        "3",
        "1",
        "25 %",
    ]
    # In two seconds shown, of which there are 0.7 yet: 0.5 until the step's end, and a bit in which nothing happens.
    shares = page.run(
        "[...document.querySelectorAll('.busy')].map((one) => one.innerText.match(/\\d+/g).map(Number))"
    )
    assert shares[0] == [pytest.approx(57, abs=2), pytest.approx(14, abs=2)]
    assert shares[1] == [pytest.approx(29, abs=2), pytest.approx(14, abs=2)]
    widths = page.run(
        "[...document.querySelectorAll('.block:not(.language)')].map((one) => parseFloat(one.style.width))"
    )
    assert widths[0] == pytest.approx(2 * widths[1], rel=0.01)
    label = page.run("document.querySelector('.track').getAttribute('aria-label')")
    assert label.startswith("Rank 0: encoder ")
    # What comes much later is drawn close by, behind a line that says so.
    news(engine, NamedNews(EncoderBegan(9, 500.0, "cut by rows", 0.5, 0, 4, 4, lanes), {}))
    page.wait("document.querySelectorAll('.gap').length === 2")
    news(engine, NamedNews(StepsEnded(500.1, 1, 0.0, gauges, 9, (0.1, 0.1), 0.1)))
    page.wait("document.getElementById('feed').innerText === 'idle'")
    assert page.text("#plans li .took").startswith("2 plans, 4 units")


def test_a_page_left_open_holds_no_more_and_more(page: Browser, engine: FakeEngine) -> None:
    lanes = ((UnitRows("k", 0, 8, 8),), ())
    for index in range(2200):
        began = EncoderBegan(index, 100 + index / 50, "whole", 0.01, 0, 4, 4, lanes)
        ended = StepsEnded(began.time + 0.01, 1, 0.0, EngineStats(), index, (0.01, 0.0), 0.01)
        news(engine, NamedNews(began), NamedNews(ended))
    page.wait("document.querySelector('#plans .took')?.innerText.includes('2200 plans')")
    page.wait("document.getElementById('feed').innerText === 'idle'")
    assert 1900 < page.run("document.querySelectorAll('.block').length") <= 2001
    assert page.run("document.querySelectorAll('#plans li').length") == 1


@pytest.mark.parametrize("width", [1280, 360])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_can_be_read_and_used_by_keyboard(page: Browser, width: int, scheme: str) -> None:
    page.resize(width, 740)
    page.prefer(color_scheme=scheme)
    answered(page, "A question " + "w" * 200)
    assert page.run("document.documentElement.scrollWidth") <= width
    unnamed = """[...document.querySelectorAll("button, input, select, textarea, summary")].filter((one) =>
      !one.textContent.trim() && !one.labels?.length && !one.getAttribute("aria-label")).map((one) => one.id)"""
    assert page.run(unnamed) == []
    page.run("document.getElementById('question').focus()")
    reached = []
    for _ in range(7):
        page.press("Tab")
        reached.append(page.run("document.activeElement.id || document.activeElement.parentElement.id"))
    assert {"send", "attach", "by-url", "settings"} <= set(reached)
    contrast = """(() => {
      const luminance = (color) => {
        const [r, g, b] = color.match(/[\\d.]+/g).slice(0, 3).map((v) => v / 255)
          .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
      };
      const ground = (node) => {
        for (; node; node = node.parentElement) {
          const color = getComputedStyle(node).backgroundColor;
          if (color !== "rgba(0, 0, 0, 0)") return color;
        }
      };
      const bad = [];
      for (const node of document.querySelectorAll("p, h1, h2, h3, dt, dd, button, summary, label, .busy, .now")) {
        if (!node.offsetParent || !node.innerText.trim() || node.closest(":disabled")) continue;
        const [a, b] = [getComputedStyle(node).color, ground(node)].map(luminance).sort((x, y) => y - x);
        if ((a + 0.05) / (b + 0.05) < 4.5) bad.push([node.className || node.id || node.localName, node.innerText]);
      }
      return bad;
    })()"""
    assert page.run(contrast) == []
