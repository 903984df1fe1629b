"""Opening the page in a browser."""

import os
import threading
import webbrowser


def open_browser(url: str) -> bool:
    """Open the page in $BROWSER or a browser with windows, in the background.

    False if there is none.
    """
    try:
        browser = webbrowser.get()
    except webbrowser.Error:
        return False

    # lynx or w3m would take the terminal. But the reader's own choice is never refused.
    takes_the_terminal = type(browser) is webbrowser.GenericBrowser
    if takes_the_terminal and not os.environ.get("BROWSER"):
        return False
    threading.Thread(target=browser.open, args=(url,), daemon=True).start()
    return True
