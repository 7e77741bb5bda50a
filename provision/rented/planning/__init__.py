"""The plan of `up` for rented machines: what is asked for beside what there is, checked, priced, shown."""
