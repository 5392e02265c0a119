from playwright.sync_api import Browser

from tests.view.conftest import opened


def test_complaints_of_a_page_are_heard(browser: Browser) -> None:
    with opened(browser) as tab:
        tab.page.set_content("<script>console.error('no'); console.log('yes')</script><p>text</p>")
        tab.page.wait_for_function("document.querySelector('p')")
        assert tab.complaints == ["error: no"]
        tab.complaints.clear()
