"""A small threaded HTTP/1.1 server for monitoring endpoints, with exporter-toolkit's TLS and basic auth.

It knows nothing of GPUs: routes and bodies are arguments, so that both programs share it. It imports the standard
library and gpufleet.logs, and, only when a web configuration file asks for them, ssl, PyYAML and bcrypt. Parsing is
pure (``request_head``, ``negotiate``, ``webconfig``, ``tls_settings``); sockets are touched in ``server``,
``connection``, ``registry``, ``rejection`` and ``addresses``.

http.server and wsgiref are not used: they bring 10 MiB of email and html modules, and servers built on them do the TLS
handshake in the accept loop, where one silent client blocks every scrape.
"""
