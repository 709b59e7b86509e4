"""Each behaviour that differs: the difference it shows, what is seen on Flask-Limiter, and what here."""

SEEN: dict[str, tuple[str, str, str]] = {
    "a_refused_request_in_the_other_limits": ("all or nothing", "200 429 429 | 429", "200 429 429 | 200"),
    "a_refused_request_in_the_limit_of_the_app": ("all or nothing", "200 429 429 | 429 429", "200 429 429 | 200 200"),
    "an_empty_key": ("empty keys", "200 200 200", "200 429 429"),
    "a_cost_above_the_limit": ("all or nothing", "429 429 429", "429 200 429"),
    "application_limits_by_request": ("one quota whatever the count", "200 200 429 | 200 429", "200 200 429 | 429 429"),
    "limits_by_what_a_decorator_has_found": ("callables that fail", "200 500", "200 429"),
    "another_count_for_the_same_key": ("one quota whatever the count", "200 200 200 200", "200 200 200 429"),
    "limits_that_make_no_sense": ("callables that fail", "200 429 200 200", "200 429 429 429"),
    "limits_that_raise": ("callables that fail", "200 500", "200 429"),
    "text_that_is_no_limit": (
        "mistakes in text",
        "200 200 200 | 200 200 200",
        "an error at import | an error at import",
    ),
    "a_window_of_years": ("windows above 400 days", "200 429 429 | 200 429 429", "200 429 429 | an error at import"),
    "two_functions_in_one_view": ("quotas of their own", "429 429", "200 429"),
    "a_default_limit_with_the_text_of_another": (
        "quotas of their own",
        "200 200 | 429",
        "200 200 | 200",
    ),
    "limits_put_on_a_registered_view": ("limits that nobody calls", "200 200", "200 429"),
    "deduct_when_of_a_refusal": (
        "all or nothing",
        "ok | 1 per 1 hour | 1 per 1 hour | 2 per 1 minute",
        "ok | 1 per 1 hour | 1 per 1 hour | 1 per 1 hour",
    ),
    "requests_at_once_with_deduct_when": ("charge first", "200 200", "200 429"),
    "retry_after_without_header_fields": ("Retry-After", "None | None", "None | 60"),
    "header_fields": (
        "all or nothing",
        "2 1 +61 60 | 2 0 +41 40 | 2 0 +41 40 | 60 56 +41 40 | None None None None",
        "2 1 +61 60 | 2 0 +41 40 | 2 0 +41 40 | 60 57 +41 40 | None None None None",
    ),
    "header_fields_after_a_slow_view": ("headers of the check", "2", "1"),
    "header_fields_of_a_moving_window": (
        "reset of a moving window",
        "2 1 +61 60 | 2 0 +51 50 | 2 0 +41 40",
        "2 1 +61 60 | 2 0 +61 60 | 2 0 +41 40",
    ),
    "moving_window_at_its_edge": ("edge of a moving window", "200 200 200 200 | 429", "200 200 200 200 | 200"),
    "windows_of_the_sliding_window_counter": (
        "windows of the counter",
        "200 200 200 200 | 429 429 429 | 200 429 429",
        "200 200 200 200 | 429 429 429 | 429 429 429",
    ),
    "a_strategy_that_there_is_not": (
        "names of errors",
        "limits.ConfigurationError",
        "flask_multilimit.ConfigurationError",
    ),
    "memcached": ("storages", "limits", "flask_multilimit"),
    "a_storage_that_there_is_not": (
        "names of errors",
        "limits.ConfigurationError",
        "flask_multilimit.ConfigurationError",
    ),
    "no_storage_named": ("memory", "1 warning", "0 warning"),
    "two_limiters_with_two_storages": ("one storage", "both", "an error"),
    "current_limits_of_a_refusal": (
        "all or nothing",
        "(9 per 1 minute: 7 61 False False) (1 per 1 hour: 0 3601 True False)",
        "(9 per 1 minute: 8 61 False False) (1 per 1 hour: 0 3601 True False)",
    ),
    "limits_of_the_application_on_the_command_line": (
        "flask limiter",
        "limits: 50 per 1 day | limits:  | clear: 50 per 1 day",
        "limits: 50 per 1 day | limits: 50 per 1 day | clear: 50 per 1 day",
    ),
    "an_outage": ("outages", "500 500 500", "200 200 429"),
}
