"""The pure core: sequences, pages, plans, policies, scheduler. Read it to understand kvalet."""
