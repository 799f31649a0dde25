"""The base of all handlers, the templates, the event stream to browsers, and the checks of the service's health."""
