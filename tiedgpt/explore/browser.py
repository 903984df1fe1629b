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

    # Browsers for the terminal, such as w3m, are of this class itself, not of a class below it.
    # One is opened only if the reader has chosen it.
    takes_the_terminal = type(browser) is webbrowser.GenericBrowser
    is_readers_choice = bool(os.environ.get("BROWSER"))
    if takes_the_terminal and not is_readers_choice:
        return False
    threading.Thread(target=browser.open, args=(url,), daemon=True).start()
    return True
