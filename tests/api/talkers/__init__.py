"""An app of agents for the tests of the REST API."""
