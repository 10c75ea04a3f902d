"""Training that is research more than routine: a drafter for a model, masks, exposure bias, scaling laws.

`glassloop train drafter`, `holes`, `exposure` and `sweep` are its commands; nothing else imports it.
"""
