package conformance

// PropertyNames lists the properties that mutants of the bundled engine must prove.
func PropertyNames() (names []string) {
	for _, p := range properties {
		names = append(names, p.name)
	}
	return names
}
