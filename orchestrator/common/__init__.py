"""Small tools that every room uses: values, registries of variants, files made once on a machine."""
