"""The pure core: sequences, pages, plans, policies, the scheduler. Read this to understand kvalet."""
