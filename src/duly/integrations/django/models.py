"""No models: Duly's tables are made by its own migrations. Django tells only apps with this module that it has migrated."""
