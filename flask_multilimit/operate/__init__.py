"""Tools for the people who run an app: the command line, the dashboard, and the reports behind them."""
