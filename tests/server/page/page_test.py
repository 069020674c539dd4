#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The server's page in a real browser, against a server of our own: page_test.py PAGE [PICTURES]

Exit 77 (skipped) where chromium and chromedriver are not installed. With a second argument pictures of the page are
written to that folder.
"""
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import browser as browsers  # noqa: E402
from fake_server import Server  # noqa: E402

PAGE = None
IDLE = "return document.getElementById('stop').hidden"


class PageTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.browser = browsers.Browser()

    @classmethod
    def tearDownClass(cls):
        cls.browser.close()

    def setUp(self):
        self.server = Server(PAGE)
        b = self.browser
        b.open(self.server.address)
        b.run("localStorage.clear(); sessionStorage.clear()")
        b.open("about:blank")
        b.open(self.server.address)

    def tearDown(self):
        self.server.stop()

    def ask(self, question, wait=True):
        self.browser.type("#question", question + browsers.KEYS["Enter"])
        if wait:
            self.idle()

    def idle(self):
        self.browser.until("the answer ends", IDLE)

    def words(self):
        return self.browser.run("return document.querySelector('.assistant:last-child .body').innerText.split(/\\s+/).length")

    def test_answers_are_shown_as_markdown(self):
        b = self.browser
        self.ask("Why?")
        self.assertEqual(b.text(".user .body"), ["Why?"])
        self.assertEqual(b.text(".assistant h2"), ["Answer to Why?"])
        self.assertEqual(b.text(".assistant td"), ["full", "16", "1x", "bands:bits=2", "2.62", "6.1x"])
        self.assertEqual(b.text(".assistant ol > li > ul > li"), ["nested item", "another"])
        self.assertEqual(b.text(".assistant figcaption span"), ["python"])
        self.assertIn("# <b>not bold</b>", b.text(".assistant pre")[0])
        self.assertEqual(b.text(".assistant blockquote"), ["A quotation."])
        self.assertEqual(b.run("return document.querySelector('.assistant a').href"), "https://example.org/a_(b)")
        self.assertEqual(b.text(".assistant strong, .assistant em"), ["short", "bold", "item"])

    def test_text_of_a_model_never_becomes_markup(self):
        b = self.browser
        self.ask("evil")
        self.assertEqual(b.count(".assistant script, .assistant img, .assistant svg, .assistant i, .assistant b, .assistant a"), 0)
        self.assertIsNone(b.run("return window.pwned ?? null"))
        self.assertIn("<img src=x", b.text(".assistant .body")[0])
        b.run("localStorage.setItem('kvspan.chat.x', JSON.stringify({id: 'x', title: '<img src=y onerror=window.pwned=1>', changed: 1, revision: 1, messages: []}));"
              "localStorage.setItem('kvspan.chat.y', 'not json')")
        b.open(self.server.address + "?again")
        self.assertIn("<img src=y", " ".join(b.text("#conversations .open")))
        self.assertIsNone(b.run("return window.pwned ?? null"))

    def test_answers_come_piece_by_piece_and_stop(self):
        b = self.browser
        self.ask("slow", wait=False)
        b.until("some words", "return (document.querySelector('.assistant .body')?.innerText ?? '').includes('word3')")
        self.assertFalse(b.shown("#send"))
        b.press("Escape")
        self.idle()
        count = self.words()
        self.assertLess(count, 1500)
        self.assertIn("Stopped.", b.text(".assistant .tools")[0])
        for _ in range(200):  # the server notices when it writes
            if self.server.aborted:
                break
            b.run("return 1")
        self.assertEqual(self.server.aborted, 1)
        b.click(".again")
        b.until("it comes again", "return !document.getElementById('stop').hidden")
        b.click("#stop")
        self.idle()
        self.assertEqual(len(self.server.requests), 2)
        self.assertEqual([m["role"] for m in self.server.requests[1]["messages"]], ["user"])

    def test_conversations_go_on_after_a_reload(self):
        b = self.browser
        self.ask("first")
        self.ask("think second")
        self.assertEqual([m["role"] for m in self.server.requests[1]["messages"]], ["user", "assistant", "user"])
        self.assertEqual(b.text("details summary"), ["Thoughts"])
        b.call("POST", "/refresh", {})
        self.assertEqual(b.text(".user .body"), ["first", "think second"])
        self.assertEqual(b.count(".assistant"), 2)
        self.assertEqual(b.text("#conversations .open"), ["first"])
        # In the middle of an answer, with a draft.
        self.ask("slow", wait=False)
        b.until("a part is kept", "return Object.values(localStorage).some((v) => v.includes('word9 '))")
        b.type("#question", "draft")
        b.call("POST", "/refresh", {})
        self.assertIn("word9", b.text(".assistant .body")[-1])
        self.assertIn("Interrupted.", b.text(".assistant .tools")[-1])
        self.assertEqual(b.run("return document.getElementById('question').value"), "draft")

    def test_two_tabs_do_not_overwrite_each_other(self):
        b = self.browser
        self.ask("shared")
        first = b.tabs()[0]
        address = b.run("return location.href")
        second = b.new_tab()
        try:
            b.open(address)
            self.assertEqual(b.text(".user .body"), ["shared"])
            self.ask("slow in two", wait=False)
            b.until("words", "return document.querySelectorAll('.assistant').length === 2 && document.querySelector('.assistant:last-child .body').innerText.includes('word3')")
            b.switch(first)
            b.until("the first tab sees it", "return document.querySelectorAll('.user').length === 2")
            self.ask("from one")
            self.assertIn("from one", b.text(".user .body"))
            b.switch(second)
            b.click("#stop")
            self.idle()
            kept = b.run("return Object.entries(localStorage).filter(([k]) => k.startsWith('kvspan.chat.')).map(([, v]) => JSON.parse(v).messages.filter((m) => m.role === 'user').map((m) => m.content))")
            self.assertEqual(len(kept), 2, "each tab's words are a conversation")
            self.assertTrue(any("from one" in one for one in kept))
            self.assertTrue(any("slow in two" in one and "from one" not in one for one in kept))
            # Each tab with its own conversation.
            b.click("#new")
            self.ask("another")
            b.switch(first)
            b.until("the list has it", "return [...document.querySelectorAll('#conversations .open')].some((e) => e.innerText === 'another')")
        finally:
            b.switch(second)
            b.call("DELETE", "/window")
            b.switch(first)

    def test_a_server_that_goes_and_comes_back(self):
        b = self.browser
        self.ask("before")
        self.ask("break")
        self.assertIn("The server went away before the answer ended.", b.text(".assistant .tools")[-1])
        port = self.server.server_address[1]
        self.ask("slow", wait=False)
        b.until("words", "return document.querySelector('.assistant:last-child .body').innerText.includes('word3')")
        self.server.stop()
        self.idle()
        self.assertIn("went away", b.text(".assistant:last-child .wrong")[0])
        b.until("it says so", "return document.getElementById('away').checkVisibility()")
        self.ask("while it is away")
        self.assertEqual(b.text(".assistant:last-child .wrong"), ["The server cannot be reached."])
        self.server = Server(PAGE, port)
        b.until("it is back", "return !document.getElementById('away').checkVisibility()")
        b.click(".again")
        self.idle()
        self.assertEqual(b.text(".assistant:last-child h2"), ["Answer to while it is away"])
        self.ask("full")
        self.assertIn("3.1 GiB asked for, 2.0 GiB allowed", b.text(".assistant:last-child .wrong")[0])

    def test_settings_reach_the_server(self):
        b = self.browser
        b.click("#show-settings")
        b.type("#system", "Be brief.")
        b.type("#temperature", "0.25")
        b.type("#max_tokens", "77")
        b.click("#save-settings")
        self.ask("hello")
        request = self.server.requests[0]
        self.assertEqual(request["messages"][0], {"role": "system", "content": "Be brief."})
        self.assertEqual((request["temperature"], request["max_tokens"]), (0.25, 77))
        self.assertNotIn("top_k", request)
        self.assertTrue(request["stream"])

    def test_numbers_of_the_server(self):
        b = self.browser
        b.until("memory", "return document.getElementById('memory-now').innerText.includes('less')")
        self.ask("hello")
        self.assertIn("SmolLM2", b.text("#model")[0])
        self.assertIn("tokens a second", b.text("#speed-now")[0])
        self.assertEqual(b.count("#layers-chart rect"), 30)
        b.until("two looks", "return document.querySelectorAll('#memory-chart polyline').length === 2")
        self.assertIn("KV memory", b.run("return document.querySelector('#memory-chart svg').getAttribute('aria-label')"))

    def test_by_keyboard(self):
        b = self.browser
        b.type("#question", "one" + browsers.KEYS["Shift"] + browsers.KEYS["Enter"])
        b.run("document.getElementById('question').focus()")
        b.press("Enter")
        self.idle()
        b.press("Alt", "n")
        self.assertEqual(b.count(".message"), 0)
        self.assertEqual(b.run("return document.activeElement.id"), "question")
        # Every control can be reached, and each has a name.
        names = b.run("return [...document.querySelectorAll('button, input, textarea')].filter((e) => e.checkVisibility()).map((e) => (e.innerText || e.labels?.[0]?.innerText || e.ariaLabel || '').trim())")
        self.assertNotIn("", names)
        self.assertEqual(b.run("return [...document.querySelectorAll('[tabindex]')].filter((e) => e.tabIndex < 0).length"), 0)

    def test_fits_a_phone(self):
        b = self.browser
        try:
            b.metrics(360, 740, False)
            b.open(self.server.address + "?phone")
            self.ask("phone")
            self.assertLessEqual(b.run("return document.documentElement.scrollWidth"), 360)
            self.assertLessEqual(b.run("return document.getElementById('messages').scrollWidth - document.getElementById('messages').clientWidth"), 0)
            self.assertFalse(b.shown("#list"))
            b.click("#show-memory")
            self.assertTrue(b.shown("#memory"))
            b.click("#show-list")
            self.assertTrue(b.shown("#list"))
            self.assertFalse(b.shown("#memory"))
            b.press("Escape")
            self.assertFalse(b.shown("#list"))
        finally:
            b.metrics(1200, 800, False)

    def test_nothing_comes_from_elsewhere(self):
        text = PAGE.read_text()
        self.assertNotIn("innerHTML", text)
        for word in ('src="http', "url(http", "@import", "eval("):
            self.assertNotIn(word, text)


def take_pictures(folder):
    folder.mkdir(parents=True, exist_ok=True)
    server = Server(PAGE)
    for width, height in ((1200, 800), (390, 844)):
        for dark in (False, True):
            with browsers.Browser(width, height, dark) as b:
                b.open(server.address)
                for question in ("Which recipe should I take?", "And in Python?"):
                    b.type("#question", question + browsers.KEYS["Enter"])
                    b.until("the answer ends", IDLE)
                b.until("charts", "return document.querySelectorAll('#memory-chart polyline').length === 2")
                name = f"page_{width}_{'dark' if dark else 'light'}"
                b.picture(folder / f"{name}.png")
                if width < 600:
                    b.click("#show-memory")
                    b.picture(folder / f"{name}_memory.png")
                    b.click("#show-memory")
                b.click("#show-settings")
                b.picture(folder / f"{name}_settings.png")
    server.stop()


if __name__ == "__main__":
    PAGE = pathlib.Path(sys.argv.pop(1)).resolve()
    if not browsers.installed():
        print("chromium and chromedriver are not installed")
        sys.exit(77)
    if len(sys.argv) > 1 and not sys.argv[1].startswith("-") and not sys.argv[1].startswith("PageTest"):
        take_pictures(pathlib.Path(sys.argv[1]))
    else:
        unittest.main(verbosity=2)
