"""What billing sends to Stripe and hears from it: outbox, delivery, webhooks, reconciliation. Our ledger stays the truth."""
