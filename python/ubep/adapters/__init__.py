"""The package in the shapes that model libraries and engines call: one module for each, none imported
by `import ubep`. docs/adapters.md of the project tells what each replaces."""
