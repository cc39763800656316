"""Never comes to its first step, nor to its end: it waits for something that never happens."""

import threading

threading.Event().wait()
