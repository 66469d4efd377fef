"""The direct path: the exporter tells Alertmanager of an isolating incident itself, seconds before a rule could.

Here is what becomes an alert, what is sent to whom and when (decided purely), and the HTTP client that sends it. What
an incident is comes from elsewhere; only the commands that wire the two import this package.
"""
